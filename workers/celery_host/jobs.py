"""The jobs of a TaskPool, on its event loop: one asyncio task for each task that Celery hands over.

The life of a job:

    waiting --a place is free--> accepted --the task ends--> reported to Celery, gone
       |                           |  cancelled, once (by a revoke or by the drain): CancelledError
       |                           |  reaches the task, which cleans up
       |                           +--> the clean-up ends --> reported to Celery as ignored, gone
       +--drain--> gone; maintenance sends its response to another worker

Celery's tracer would run a task in a thread, synchronously. This module takes its part: it awaits the task's coroutine
and reports the end to Celery's Request, which sends the events that Flower shows.

A job that is gone leaves no reference cycle behind. Each would hold some 40 objects (Celery's Request, the message)
until a full garbage collection, which is rare: a worker grew by 1.3 KiB with each response.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from anyio import CapacityLimiter
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore

from app.aio import BackgroundTasks
from app.protocol.text import type_and_places
from app.queue.message import Kind, kind_of
from config.logging.context import about
from workers.generation.outcome import Cancelled, current_job

log = logging.getLogger("longhaul.pool")

CLEANUP_SECONDS = 10.0
"""How long a stopping pool waits for the jobs that it cancelled. Then it stops without them."""
CHECK_SECONDS = 0.1

Result = tuple[int, Any, float]
"""The value of Celery's tracer: whether the task failed, its value as text or an ExceptionInfo, and its seconds."""

_pids = itertools.count(1 << 20)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Job:
    """One task in the pool. Celery's Request names it by `pid`, and holds a weak reference to it."""

    request: Any
    """Celery's Request (celery.worker.request)."""
    pid: int = field(default_factory=lambda: next(_pids))
    task: asyncio.Task[None] | None = None
    kind: Kind = Kind.ANSWERS
    """Kind of the list that its message came from."""
    accepted: bool = False
    cancelled: Cancelled | None = None

    def terminate(self, signal: int | None = None) -> None:
        """Does nothing: Request.terminate() calls this after `TaskPool.terminate_job`, which has cancelled the job."""


class Jobs:
    """All jobs of a pool. To be made, and called, on the loop's thread, except where a method says otherwise."""

    def __init__(self, limit: int, place_freed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._places = CapacityLimiter(limit)
        """Places for answers. Foreground ones wait for none: a worker takes no more than it has room for (`fetch`)."""
        self._place_freed = place_freed
        self._jobs: dict[int, Job] = {}
        self._pids: dict[Kind, set[int]] = {kind: set() for kind in Kind}
        self._background = BackgroundTasks(_log_bug)
        self.is_draining = False
        self._grace_over = asyncio.Event()
        self.context = contextvars.copy_context()
        """The context variables of jobs and background work; the pool adds the runner."""

    # From any thread

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def count(self, kind: Kind) -> int:
        """How many jobs there are of this kind; it may be one too many for a moment, never too few."""
        return len(self._pids[kind])

    def submit(self, request: Any) -> Job:
        """Takes over what Celery's Request asks for. It starts when it has a place."""
        job = Job(request, kind=kind_of(request.delivery_info["routing_key"]))
        self._jobs[job.pid] = job  # the only strong reference: Request holds a weak one
        self._pids[job.kind].add(job.pid)
        self._loop.call_soon_threadsafe(self._start, job)
        return job

    def get(self, pid: int) -> Job | None:
        return self._jobs.get(pid)

    def cancel(self, job: Job, reason: Cancelled) -> None:
        """Cancels a job, once: a second reason does not interrupt its clean-up. A waiting job ends when accepted."""
        if job.cancelled is None:
            job.cancelled = reason
            self._loop.call_soon_threadsafe(lambda: job.accepted and job.task and job.task.cancel())

    # On the loop's thread

    def resize(self, limit: int) -> None:
        """Sets how many jobs run at once."""
        self._places.total_tokens = limit

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in the jobs' context. A drain waits for it, and cancels it at the end."""
        self.context.run(self._background.start, work)

    def end_grace(self) -> None:
        """Ends the grace of the current drain, or of the next one."""
        self._grace_over.set()

    async def drain(self, grace: float) -> None:
        """Starts no more jobs, lets running ones go on for `grace` seconds, then cancels them and waits.

        Waits for background work as well. After CLEANUP_SECONDS it cancels and leaves behind whatever still runs.
        """
        self.is_draining = True
        for job in self:
            if not job.accepted and job.task is not None:
                job.task.cancel()
                self._remove(job)  # a task that is cancelled before its first step does not
        await self._idle(grace, self._grace_over)
        for job in self:
            self.cancel(job, Cancelled.SHUTDOWN)
        if await self._idle(CLEANUP_SECONDS):
            return
        log.error("did not end in time: %s", ", ".join(job.request.id for job in self) or "background work")
        for task in self._busy():
            task.cancel()
        await self._idle(CHECK_SECONDS)

    def _start(self, job: Job) -> None:
        if self.is_draining:  # the message is not acknowledged: see above
            self._remove(job)
            return
        context = self.context.copy()
        context.run(current_job.set, job)
        job.task = self._loop.create_task(self._run(job), context=context)

    async def _run(self, job: Job) -> None:
        try:
            async with self._places if job.kind is Kind.ANSWERS else nullcontext():
                job.accepted = True
                with about(job.request.id):
                    result = await _result(job)
        except asyncio.CancelledError:
            if not job.accepted:
                return
            result = _failed(Ignore())
        finally:
            self._remove(job)
            job.task = None  # the task's context refers to the job
        self._report(job, result)

    def _remove(self, job: Job) -> None:
        self._jobs.pop(job.pid, None)
        self._pids[job.kind].discard(job.pid)

    def _report(self, job: Job, result: Result) -> None:
        # On this thread, because Celery's main thread may be busy reconnecting to Redis.
        try:
            job.request.on_success(result)  # of a failure as well: Celery's pools have this one callback
            _drop_frames(result)
        except Exception:
            with about(job.request.id):
                log.exception("Celery could not note the end of the task")
        self._place_freed()

    def _busy(self) -> set[asyncio.Task[Any]]:
        return {job.task for job in self if job.task is not None} | set(self._background)

    async def _idle(self, seconds: float, sooner: asyncio.Event | None = None) -> bool:
        """Waits until nothing runs, for at most `seconds`, or until `sooner` is set. Returns whether nothing runs."""
        end = self._loop.time() + seconds
        while busy := self._busy():
            left = end - self._loop.time()
            if left <= 0 or (sooner is not None and sooner.is_set()):
                return False
            await asyncio.wait(busy, timeout=min(left, CHECK_SECONDS))
        return True


async def _result(job: Job) -> Result:
    """Awaits the task and returns its result. Raises nothing but CancelledError."""
    request, started = job.request, time.monotonic()
    try:
        request.on_accepted(job.pid, started)
        if job.cancelled:  # Celery reports only now that the job was terminated while it waited
            return _failed(Ignore())
        value = await request.task.run(*request.args, **request.kwargs)
        return 0, repr(value), time.monotonic() - started
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if not isinstance(error, (Ignore, *request.task.throws)):
            log.error("the task failed: %s", type(error).__name__)
        return _failed(error)
    except BaseException as error:
        return _failed(WorkerLostError(f"{type(error).__name__} escaped the task"))


def _failed(error: Exception) -> Result:
    try:
        raise error
    except Exception:
        info = ExceptionInfo()
    info.exception = error  # billiard wraps it for its way out of a child process; Flower shows the error itself
    return 1, info, 0.0


def _drop_frames(result: Result) -> None:
    """Takes the frames from an exception that was reported: one of them refers to the exception."""
    failed, info, _ = result
    if failed:
        info.exception.__traceback__ = info.exception.__context__ = None


def _log_bug(error: BaseException) -> None:
    log.error("background work of the pool went wrong: %s", type_and_places(error))
