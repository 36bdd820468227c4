"""Celery's part, played for unit tests of TaskPool: requests, and a pool without a worker."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from celery.exceptions import Ignore

from app.queue.message import Kind, list_of
from tests.support.waiting import PATIENCE_SECONDS, until, until_sync
from workers.celery_host.pool import TaskPool
from workers.generation.outcome import Cancelled, why_cancelled
from workers.generation.slots import Slots

Body = Callable[[], Coroutine[Any, Any, Any]]


class Expected(Exception):
    """An error that the task declares in `throws`."""


class Request:
    """Celery's Request, as far as the pool uses it. `body` is its task."""

    def __init__(self, pool: TaskPool, body: Body, task_id: str = "resp") -> None:
        self.id = task_id
        self.delivery_info = {"routing_key": list_of("model.test", "node", Kind.ANSWERS)}
        self.task = SimpleNamespace(run=body, throws=(Expected,))
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.kwargsrepr = repr({"project": "default", "model": "test"})
        self.pid: int | None = None
        self.result: Any = None
        self.ended = threading.Event()
        self.pool = pool
        self.terminated = 0
        # Celery's Request holds its job weakly as well.
        self.job = weakref.ref(
            pool.on_apply(
                tracer, (), {}, callback=self.on_success, accept_callback=self.on_accepted, correlation_id=task_id
            )
        )

    def on_accepted(self, pid: int, _at: float) -> None:
        self.pid = pid

    def on_success(self, result: Any) -> None:
        self.result = result
        self.ended.set()

    def terminate(self, pool: TaskPool | None = None, signal: Any = None) -> None:
        self.terminated += 1
        self.pool.terminate_job(self.started().pid or 0, signal)

    def started(self) -> Request:
        until_sync(lambda: self.pid is not None)
        return self

    def wait(self) -> Any:
        assert self.ended.wait(PATIENCE_SECONDS)
        return self.result

    @property
    def ignored(self) -> bool:
        return is_ignored(self.wait())

    @property
    def value(self) -> str:
        failed, value, seconds = self.wait()
        assert not failed and seconds >= 0.0
        assert isinstance(value, str)
        return value


def is_ignored(result: Any) -> bool:
    """Whether Celery forgets the request without an event."""
    failed, info, _ = result
    return bool(failed) and isinstance(info.exception, Ignore)


def tracer(*_: Any) -> None:
    """Stands in for Celery's tracer."""
    raise AssertionError("the pool runs the task itself")


def idle_runner(limit: int = 8) -> Any:
    """A runner that has slots for so many jobs of either kind."""
    return SimpleNamespace(slots=Slots(limit + 1, limit), node="node", command_key=b"")


def start_pool(lifespan: Any = None, limit: int = 8, runner: Any = None, stop_worker: Any = None) -> TaskPool:
    """A pool with this lifespan, or with one that only yields this runner, or an idle one."""

    class Pool(TaskPool):
        pass

    @asynccontextmanager
    async def yielding(_: object, __: object) -> AsyncIterator[Any]:
        yield runner or idle_runner(limit)

    Pool.lifespan = staticmethod(lifespan or yielding)
    pool = Pool(limit, initargs=(None, "node"))
    if stop_worker is not None:
        pool.stop_worker = stop_worker
    pool.start()
    return pool


async def forever() -> None:
    await asyncio.Event().wait()


class SlowCleanup:
    """A body that runs until it is cancelled, and then cleans up until `may_end` is set."""

    def __init__(self) -> None:
        self.reason: Cancelled | None = None
        self.cleaning = threading.Event()
        self.may_end = threading.Event()
        self.clean = False

    async def __call__(self) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            self.reason = why_cancelled()
            self.cleaning.set()
            await until(self.may_end.is_set)
            self.clean = True
            raise
