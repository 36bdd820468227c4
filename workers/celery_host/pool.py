"""TaskPool: Celery's tasks as asyncio tasks on one loop; many at once, each one terminable.

Celery's consumer keeps the main thread; the loop, and with it every job, runs in a thread of ours.
Celery hands jobs over (`on_apply`) and is called back on the loop's thread: acknowledgements and
events pass through kombu's hub, which has a lock and a waker (kombu >= 5.7). Celery addresses a
running job by a number: each gets a "pid" of its own. What a job goes through: `workers.celery_host.jobs`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

from celery.concurrency.base import BasePool
from celery.exceptions import WorkerShutdown
from celery.worker import state as worker_state

from config.settings import ConfigError
from workers.celery_host.bridge import aio_await, run_body
from workers.celery_host.jobs import CLEANUP_SECONDS, LOOK_SECONDS, Job, Jobs
from workers.generation.cancellation import Cancelled, current_leave, current_lifespan

__all__ = ["CLEANUP_SECONDS", "Lifespan", "TaskPool", "aio_await"]

log = logging.getLogger("longhaul.pool")

LEAVE_SECONDS = 10.0
"""How long the lifespan may take to leave."""

Lifespan = Callable[[], AbstractAsyncContextManager[object]]
"""Makes the context manager that holds while a pool runs; jobs find what it gives in `current_lifespan`."""


class TaskPool(BasePool):  # type: ignore[misc]  # Celery has no types
    """Celery's pool interface. `lifespan` is set before the worker starts; its failure ends the worker."""

    lifespan: ClassVar[Lifespan] = contextlib.nullcontext
    leave: Callable[[int], None] | None = None
    """What `workers.generation.cancellation.leave` calls."""

    body_can_be_buffer = True
    signal_safe = False
    task_join_will_block = True

    _hub: Any = None
    _thread: threading.Thread | None = None

    def on_start(self) -> None:
        """Starts the loop and enters the lifespan; Celery consumes only after that.

        Raises WorkerShutdown with the exit code where the lifespan failed, or a signal came meanwhile.
        """
        self._loop = _new_loop()
        self._jobs = Jobs(self._loop, self.limit, self._wake_consumer)
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
            while not concurrent.futures.wait([self._entered], timeout=LOOK_SECONDS).done:
                worker_state.maybe_shutdown()
            self._entered.result()
        except ConfigError as error:
            log.critical("the worker cannot start: %s", error)
            raise WorkerShutdown(os.EX_CONFIG) from None
        except Exception as error:
            log.critical("the worker cannot start: %s: %s", type(error).__name__, _one_line(error))
            log.debug("why the worker cannot start", exc_info=error)
            raise WorkerShutdown(1) from None

    async def _live(self) -> None:
        """Holds the lifespan. One task enters and leaves it: cancel scopes and task groups want that."""
        current_leave.set(self.leave)
        try:
            async with type(self).lifespan() as value:
                current_lifespan.set(value)
                self._jobs.context = contextvars.copy_context()
                self._entered.set_result(None)
                await self._leaving.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)

    # What Celery calls

    def register_with_event_loop(self, hub: Any) -> None:
        """Celery calls it again after each reconnect."""
        self._hub = hub

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callback: Callable[[Any], None] | None = None,
        accept_callback: Callable[[int, float], None] | None = None,
        correlation_id: str | None = None,
        **_: Any,
    ) -> Job:
        """Takes a task over. From any thread."""
        job = Job(
            body=lambda: run_body(target, *(args or ()), **(kwargs or {})),
            task_id=correlation_id,
            request=getattr(callback, "__self__", None),
            on_accept=accept_callback,
            on_end=callback,
        )
        self._jobs.submit(job)
        return job

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Cancels a job, whatever the signal. The reason is known by Celery's list of revoked ids."""
        if (job := self._jobs.get(pid)) is not None:
            revoked = job.task_id in worker_state.revoked
            self._jobs.cancel(job, Cancelled.REVOKED if revoked else Cancelled.SHUTDOWN)

    def grow(self, n: int = 1) -> None:
        self._resize(self.limit + n)

    def shrink(self, n: int = 1) -> None:
        """Raises ValueError, which Flower shows, where no slot would be left."""
        if self.limit - n < 1:
            raise ValueError(f"the pool has {self.limit} slots: one must stay")
        self._resize(self.limit - n)

    def _resize(self, limit: int) -> None:
        self.limit = limit
        self.call(self._jobs.resize, limit)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {"active": sum(job.accepted for job in self._jobs), "processes": [os.getpid()]}

    def on_stop(self) -> None:
        """Drains (at once, where that is done already) and leaves the lifespan."""
        self._stop(float(self.app.conf.worker_soft_shutdown_timeout) if self.app is not None else 0.0)

    def on_terminate(self) -> None:
        self._stop(0.0)

    def _stop(self, grace: float) -> None:
        if self._thread is None or not self._thread.is_alive():
            return
        drained = asyncio.run_coroutine_threadsafe(self._jobs.drain(grace), self._loop)
        concurrent.futures.wait([drained], timeout=grace + 2 * CLEANUP_SECONDS)
        self._end_loop()

    def _end_loop(self) -> None:
        """Leaves the lifespan, at the latest by cancelling it, and stops the loop. Never raises, never hangs."""
        if self._entered.done():
            self.call(self._leaving.set)
        else:
            self._life.cancel()
        if concurrent.futures.wait([self._life], timeout=LEAVE_SECONDS).not_done:
            log.error("the worker's parts did not stop within %g s", LEAVE_SECONDS)
            self._life.cancel()
            concurrent.futures.wait([self._life], timeout=1.0)
        elif not self._life.cancelled() and (error := self._life.exception()) is not None:
            log.error("the worker's parts did not stop cleanly: %s: %s", type(error).__name__, _one_line(error))
        self.call(self._loop.stop)
        assert self._thread is not None
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _wake_consumer(self) -> None:
        """A slot is free: Celery asks Redis for the next message now, and not at its next tick (1 s)."""
        if self._hub is not None:
            self._hub.call_soon(int)

    # What the worker program and the remote control call, from any thread

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls a function on the loop's thread, soon. Takes no lock: a signal handler may use it."""
        self._loop.call_soon_threadsafe(function, *args)

    def errand(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine where `current_runner` is; the pool does not stop before it ends."""
        self.call(self._jobs.run_errand, coroutine)

    async def drain(self, grace: float) -> None:
        """`Jobs.drain`; for the loop's thread."""
        await self._jobs.drain(grace)

    def hurry(self) -> None:
        """Ends the grace of the drain."""
        self.call(self._jobs.hurry)

    def revoke(self, task_ids: Iterable[str]) -> None:
        """Terminates every running job of these ids that Celery's own revoke did not find.

        Celery keeps one request per id, and forgets it when a duplicate of a running one ends.
        """
        self.call(self._revoke, frozenset(task_ids))

    def runs(self, task_id: str) -> bool:
        return any(job.task_id == task_id for job in self._jobs)

    def _revoke(self, task_ids: frozenset[str]) -> None:
        for job in self._jobs:
            if job.task_id in task_ids and job.cancelled is None and job.request is not None:
                job.request.terminate(self)  # announces it to Flower, and comes back as terminate_job


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or "no message"


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
