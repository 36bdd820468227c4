"""TaskPool: Celery's pool interface on one asyncio loop, with many tasks at once, each of which can be terminated.

Celery's consumer keeps the main thread. The loop, and every job with it, runs in a thread of its own. Celery hands
requests over (`on_apply`) and is called back on the loop's thread: acknowledgements and events go through kombu's hub,
which has a lock and a waker (kombu >= 5.7). Celery names a running job by a process id, so each job has a number that
serves as one. `workers.celery_host.jobs` has the life of a job.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from celery.concurrency.base import BasePool
from celery.exceptions import WorkerShutdown
from celery.worker import state as worker_state

from app.protocol.text import one_line
from app.queue.message import Kind, list_of
from config.settings import ConfigError
from workers.celery_host.jobs import CHECK_SECONDS, CLEANUP_SECONDS, Job, Jobs
from workers.celery_host.tasks import current_runner
from workers.generation.outcome import Cancelled

if TYPE_CHECKING:  # see workers.celery_host.tasks
    from workers.generation.runner import Runner

log = logging.getLogger("longhaul.pool")

MAX_ERROR_CHARS = 500
LEAVE_SECONDS = 10.0
"""How long the lifespan may take to exit."""

StopWorker = Callable[[int], None]
"""Stops this worker with an exit code, without grace: running jobs are cancelled. For the loop's thread."""
Lifespan = Callable[[StopWorker, str], "AbstractAsyncContextManager[Runner]"]
"""Makes the context manager that is open while a pool runs. It gets Celery's name of this worker (app/queue/node.py),
and gives its runner."""


class TaskPool(BasePool):  # type: ignore[misc]  # Celery has no types
    """Celery's pool interface. `lifespan` is set before the worker starts; if it fails, the worker exits."""

    lifespan: ClassVar[Lifespan]
    stop_worker: StopWorker | None = None
    """Given to the lifespan; the worker program sets it."""

    limit: int
    """Given by Celery."""
    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = True

    _runner: Runner | None = None
    """None before the lifespan is entered."""
    _hub: Any = None
    _thread: threading.Thread | None = None

    def on_start(self) -> None:
        """Starts the loop and enters the lifespan; Celery consumes only after that.

        Raises WorkerShutdown with the exit code if the lifespan failed, or if a signal arrived meanwhile.
        """
        self._loop = _new_loop()
        self._entered: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._leaving = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="longhaul-pool", daemon=True)
        self._thread.start()
        self._life = asyncio.run_coroutine_threadsafe(self._live(), self._loop)
        try:
            self._await_lifespan()
        except BaseException:
            self._end_loop()
            raise

    def _await_lifespan(self) -> None:
        try:
            while not concurrent.futures.wait([self._entered], timeout=CHECK_SECONDS).done:
                worker_state.maybe_shutdown()
            self._entered.result()
        except ConfigError as error:
            log.critical("the worker cannot start: %s", error)
            raise WorkerShutdown(os.EX_CONFIG) from None
        except Exception as error:
            log.critical("the worker cannot start: %s", one_line(error, MAX_ERROR_CHARS))
            log.debug("why the worker cannot start", exc_info=error)
            raise WorkerShutdown(1) from None

    async def _live(self) -> None:
        """Holds the lifespan. One task enters and exits it, as cancel scopes and task groups require."""
        try:
            self._jobs = Jobs(self.limit, self._wake_consumer)
            async with type(self).lifespan(self._stop_worker, self._name) as runner:
                current_runner.set(runner)
                self._runner = runner
                runner.slots.resize(self.limit)
                self._jobs.resize(runner.slots.most)
                self._jobs.context = contextvars.copy_context()
                self._entered.set_result(None)
                await self._leaving.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)

    def _stop_worker(self, exit_code: int) -> None:
        if self.stop_worker is not None:
            self.stop_worker(exit_code)

    @property
    def runner(self) -> Runner:
        """Celery consumes only after it is there."""
        assert self._runner is not None
        return self._runner

    @property
    def _name(self) -> str:
        """Celery gives it to the processes of its own pools, which this one has none of."""
        _, name, *_ = self.options["initargs"]
        return str(name)

    # Called by Celery

    def register_with_event_loop(self, hub: Any) -> None:
        """Celery calls this again after each reconnect."""
        self._hub = hub

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        callback: Callable[[Any], None],
        **_: Any,
    ) -> Job:
        """Takes a task over. From any thread.

        `target` is Celery's synchronous tracer, with `args` and `kwargs` for it; `jobs` does its work instead.
        `callback` is `on_success` of Celery's Request (celery.worker.request), which has all that a job needs.
        """
        return self._jobs.submit(callback.__self__)  # type: ignore[attr-defined]

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Cancels a job, whatever the signal. Celery's set of revoked ids tells a revoke from a shutdown."""
        if (job := self._jobs.get(pid)) is not None:
            revoked = job.request.id in worker_state.revoked
            self._jobs.cancel(job, Cancelled.REVOKED if revoked else Cancelled.SHUTDOWN)

    @property
    def num_processes(self) -> int:
        """How many answers the worker may have."""
        return self.runner.slots.most

    def free_places(self, kind: Kind) -> int:
        """How many messages of this kind may be taken now."""
        if self._jobs.is_draining:
            return 0
        return self.runner.slots.free(kind, self._jobs.count(Kind.ANSWERS), self._jobs.count(Kind.FOREGROUND))

    @property
    def is_draining(self) -> bool:
        """Whether the worker stops: it takes no more jobs, even if it connects to Redis once more."""
        return self._jobs.is_draining

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {"active": sum(job.accepted for job in self._jobs), "processes": [os.getpid()]}

    def on_stop(self) -> None:
        """Drains, unless that was done already, and exits the lifespan."""
        self._stop(float(self.app.conf.worker_soft_shutdown_timeout) if self.app is not None else 0.0)

    def on_terminate(self) -> None:
        self._stop(0.0)

    def _stop(self, grace: float) -> None:
        if self._thread is None or not self._thread.is_alive():
            return
        drained = asyncio.run_coroutine_threadsafe(self.drain(grace), self._loop)
        concurrent.futures.wait([drained], timeout=grace + 2 * CLEANUP_SECONDS)
        self._end_loop()

    def _end_loop(self) -> None:
        """Exits the lifespan, by cancelling it if need be, and stops the loop. Never raises, never hangs."""
        if self._entered.done():
            self.call(self._leaving.set)
        else:
            self._life.cancel()
        if concurrent.futures.wait([self._life], timeout=LEAVE_SECONDS).not_done:
            log.error("the worker's parts did not stop within %g s", LEAVE_SECONDS)
            self._life.cancel()
            concurrent.futures.wait([self._life], timeout=1.0)
        elif not self._life.cancelled() and (error := self._life.exception()) is not None:
            log.error("the worker's parts did not stop cleanly: %s", one_line(error, MAX_ERROR_CHARS))
        self.call(self._loop.stop)
        assert self._thread is not None
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _wake_consumer(self) -> None:
        """A place is free: Celery asks Redis for the next message now, not at its next tick (1 s)."""
        if self._hub is not None:
            self._hub.call_soon(int)

    # Called by Longhaul's parts of the worker, from any thread

    def list_of(self, queue: str, kind: Kind) -> str:
        """The list that has this worker's messages of a kind."""
        return list_of(queue, self.runner.node, kind)

    def offer(self, *, is_consuming: bool) -> None:
        """Notes whether Celery takes messages: nothing is sent to a worker that does not."""
        self.call(self._offer, is_consuming)

    def _offer(self, is_offering: bool) -> None:
        if self._runner is not None:  # else a part stops the worker before the others have started
            self._runner.slots.offer(is_offering=is_offering and not self._jobs.is_draining)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls a function on the loop's thread, soon. Takes no lock: a signal handler may use it."""
        self._loop.call_soon_threadsafe(function, *args)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that finds `current_runner`. The pool does not stop before it ends."""
        self.call(self._jobs.run_in_background, work)

    async def drain(self, grace: float) -> None:
        """`Jobs.drain`; for the loop's thread."""
        self._offer(is_offering=False)
        await self._jobs.drain(grace)

    def end_grace(self) -> None:
        """Ends the grace of the drain."""
        self.call(self._jobs.end_grace)

    def revoke(self, task_ids: Iterable[str]) -> None:
        """Terminates every running job of these ids that Celery's own revoke did not find.

        Celery keeps one request for each id, and forgets it when a duplicate of a running one ends.
        """
        self.call(self._revoke, frozenset(task_ids))

    def runs(self, task_id: str) -> bool:
        return any(job.request.id == task_id for job in self._jobs)

    def _revoke(self, task_ids: frozenset[str]) -> None:
        for job in self._jobs:
            if job.request.id in task_ids and job.cancelled is None:
                job.request.terminate(self)  # sends Flower's event, and calls terminate_job


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
