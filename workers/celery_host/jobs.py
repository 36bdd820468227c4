"""The jobs of a TaskPool, on its loop.

A job's life:

    waiting --slot--> accepted --body ends--> reported to Celery, gone
       |                 |  cancelled, once (a revoke, or the drain): CancelledError in the body,
       |                 |  which cleans up to its end
       |                 +--> its clean-up ends --> reported to Celery as ignored, gone
       +--drain--> gone; its message was never acknowledged, so Celery puts it back

Gone is gone: nothing that a job leaves is in a circle of references. Each is some 40 objects (Celery's Request, the
message), and the garbage collector, which comes seldom, moves what it meets on the way into its older generations,
where it lies for long, and with it all younger ones that it refers to: a worker grew by 1.3 KiB for each response.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore

from workers.celery_host.slots import Slots
from workers.generation.cancellation import Cancelled, current_job

log = logging.getLogger("longhaul.pool")

CLEANUP_SECONDS = 10.0
"""How long a stopping pool waits for what it cancelled; after that it goes without them."""
LOOK_SECONDS = 0.1

_pids = itertools.count(1 << 20)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Job:
    """One task in the pool. Celery's Request addresses it by `pid`, and weakly by the object itself."""

    body: Callable[[], Awaitable[Any]]
    task_id: str | None = None
    request: Any = None
    """Celery's Request; None outside a worker."""
    on_accept: Callable[[int, float], None] | None = None
    on_end: Callable[[Any], None] | None = None
    pid: int = field(default_factory=lambda: next(_pids))
    task: asyncio.Task[None] | None = None
    accepted: bool = False
    cancelled: Cancelled | None = None

    def terminate(self, signal: int | None = None) -> None:
        """Request.terminate() calls this after `terminate_job`, which has done it all."""


class Jobs:
    """Every job that the pool holds. Methods are for the loop's thread, but for those that say otherwise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, freed: Callable[[], None]) -> None:
        self._loop = loop
        self._slots = Slots(limit)
        self._freed = freed
        self._jobs: dict[int, Job] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._closing = False
        self._hurry = asyncio.Event()
        self.context = contextvars.copy_context()
        """Where jobs and errands run; the pool puts the lifespan's value into it."""

    # From any thread

    def __iter__(self) -> Any:
        return iter(list(self._jobs.values()))

    def submit(self, job: Job) -> None:
        """Takes a job over; it starts when a slot is free."""
        self._jobs[job.pid] = job  # the only strong reference: Request holds a weak one
        self._loop.call_soon_threadsafe(self._spawn, job)

    def get(self, pid: int) -> Job | None:
        return self._jobs.get(pid)

    def cancel(self, job: Job, reason: Cancelled) -> None:
        """Once per job: no second reason interrupts its clean-up. A waiting job learns it when it is accepted."""
        if job.cancelled is None:
            job.cancelled = reason
            self._loop.call_soon_threadsafe(lambda: job.accepted and job.task and job.task.cancel())

    # On the loop's thread

    def resize(self, limit: int) -> None:
        self._slots.resize(limit)

    def hurry(self) -> None:
        """Ends the grace of the drain, also of one that has not begun."""
        self._hurry.set()

    def run_errand(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs it in the jobs' context; a drain waits for it, and cancels it in the end."""
        task = self._loop.create_task(coroutine, context=self.context.copy())
        self._errands.add(task)
        task.add_done_callback(self._errand_ended)

    async def drain(self, grace: float) -> None:
        """Starts no job any more, lets running ones go on for `grace` seconds, then cancels them and waits.

        Errands are waited for as well. What has not ended CLEANUP_SECONDS after that is left behind.
        """
        self._closing = True
        for job in self:
            if not job.accepted and job.task is not None:
                job.task.cancel()
        await self._idle(grace, self._hurry)
        for job in self:
            self.cancel(job, Cancelled.SHUTDOWN)
        if await self._idle(CLEANUP_SECONDS):
            return
        log.error("left without their end: %s", ", ".join(str(job.task_id) for job in self) or "errands")
        for task in self._busy():
            task.cancel()
        await self._idle(LOOK_SECONDS)

    def _spawn(self, job: Job) -> None:
        if self._closing:  # not acknowledged: Celery puts the message back when it closes its channel
            self._jobs.pop(job.pid)
            return
        context = self.context.copy()
        context.run(current_job.set, job)
        job.task = self._loop.create_task(self._run(job), context=context)

    def _errand_ended(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an errand failed", exc_info=error)

    async def _run(self, job: Job) -> None:
        try:
            async with self._slots.one():
                job.accepted = True
                result = await _outcome(job)
        except asyncio.CancelledError:
            if not job.accepted:
                return
            result = _ignored()
        finally:
            self._jobs.pop(job.pid, None)
            job.task = None  # whose context holds the job
        self._report(job, result)

    def _report(self, job: Job, result: tuple[int, Any, float]) -> None:
        # Here, not by way of Celery's main thread: that one may be busy with connecting to Redis.
        try:
            if job.on_end is not None:
                job.on_end(result)
            _unwind(result)
        except Exception:
            log.exception("Celery could not take note of the end of %s", job.task_id)
        self._freed()

    def _busy(self) -> set[asyncio.Task[None]]:
        return {job.task for job in self if job.task is not None} | self._errands

    async def _idle(self, seconds: float, sooner: asyncio.Event | None = None) -> bool:
        """Waits until no job and no errand is left; False where `seconds` were not enough, or `sooner` was set."""
        end = self._loop.time() + seconds
        while busy := self._busy():
            left = end - self._loop.time()
            if left <= 0 or (sooner is not None and sooner.is_set()):
                return False
            await asyncio.wait(busy, timeout=min(left, LOOK_SECONDS))
        return True


async def _outcome(job: Job) -> tuple[int, Any, float]:
    """What Celery's tracer returned: (failed, value, seconds). Only a cancellation gets through as an exception."""
    try:
        if job.on_accept is not None:
            job.on_accept(job.pid, time.monotonic())
        if job.cancelled:  # Celery tells only now of a termination that came while the job waited for its slot
            return _ignored()
        result: tuple[int, Any, float] = await job.body()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _failure(WorkerLostError(f"{type(error).__name__} escaped the task"))
    return result


def _unwind(result: tuple[int, Any, float]) -> None:
    """Takes from an exception that has been reported where it came from: among those frames is one that holds it."""
    failed, info, _ = result
    if failed:
        error = getattr(info.exception, "exc", info.exception)  # billiard wraps some
        error.__traceback__ = error.__context__ = None


def _ignored() -> tuple[int, Any, float]:
    """A result that makes Celery forget the request, and tell nobody."""
    return _failure(Ignore())


def _failure(error: Exception) -> tuple[int, Any, float]:
    try:
        raise error
    except Exception:
        return 1, ExceptionInfo(), 0.0
