"""A worker app for tests of the queue: our pool, task and program, with a runner that only pretends.

The first word of a response's id says what the response does (`hold-1` runs until it is cancelled). The runner writes
what happens to the Redis list `log`: one word and the id for each event.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import redis.asyncio
from celery import bootsteps
from celery.worker.control import Panel
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from app.aio import BackgroundTasks, run_to_completion
from config.settings import ConfigError, load_settings
from config.worker_readiness import WorkerReadiness
from tests.support.cycles import count_objects as count
from tests.support.waiting import until
from workers.celery_host import program
from workers.celery_host.pool import StopWorker
from workers.generation.outcome import Outcome, ResponseFailed, why_cancelled
from workers.generation.runner import Runner
from workers.generation.slots import Slots
from workers.main import make_worker_app

KEY = bytes(32)
"""Signs commands to these workers."""
STORE = 8
"""The Redis database that stands in for Postgres, so that a test can break Celery's database alone."""
MANY_SLOTS = 1000
"""More than a worker of a test has places: it takes as many responses."""
CLEANUP_SECONDS = 0.3
LEAVE_SECONDS = 5.0
"""For the last line of the log, which cannot be written without Redis."""
SECRET = " ".join(("a", "secret", "prompt"))
LOOP = threading.Barrier(2)
"""Where a response of the kind `block` keeps the pool's loop until the remote control has met it twice."""
OUTCOMES = {
    "short": Outcome.INCOMPLETE,
    "dup": Outcome.NOT_CLAIMED,
    "gone": Outcome.CANCELLED,
    "fenced": Outcome.FENCED,
}


class PretendRunner:
    command_key = KEY

    def __init__(self, store: Any, stop_worker: StopWorker) -> None:
        self.store = store
        self.stop_worker = stop_worker
        self.running: set[str] = set()
        self.node = os.environ["PRETEND_NODE"]
        slots = int(os.environ.get("PRETEND_SLOTS", MANY_SLOTS))
        self.slots = Slots(slots, slots, changed=self.write_offer if slots < MANY_SLOTS else lambda: None)
        self.loop = asyncio.get_running_loop()
        self.background = BackgroundTasks()
        self.counter = self

    async def count(self, key: str, project: str) -> None:
        await self.write_log("count", f"{key} {project}")

    async def write_log(self, word: str, response_id: str) -> None:
        await self.store.rpush("log", f"{word} {response_id}")

    def write_offer(self) -> None:
        """Writes what the heartbeat of a real worker would tell Postgres. From any thread."""
        line = self.write_log("offers", str(self.slots.offered))
        self.loop.call_soon_threadsafe(self.background.start, line)

    async def run(self, response_id: str) -> Outcome:
        try:
            await self.write_log("start", response_id)
            if why_cancelled() is not None:  # redis-py 8.1 swallows cancellations while it connects
                raise asyncio.CancelledError
            return await self._run(response_id)
        except asyncio.CancelledError:
            reason = why_cancelled()
            # The cancellation that `why_cancelled` announced above may still arrive.
            await run_to_completion(self._clean_up(reason.value if reason else "none", response_id))
            if response_id.startswith("stuck"):
                await asyncio.Event().wait()
            if response_id.startswith("raise"):
                raise
            return Outcome.RELEASED

    async def _clean_up(self, reason: str, response_id: str) -> None:
        await asyncio.sleep(CLEANUP_SECONDS)
        await self.write_log(reason, response_id)

    async def _run(self, response_id: str) -> Outcome:
        match response_id.split("-")[0]:
            case "hold" | "raise" | "stuck":
                if response_id in self.running:
                    return Outcome.NOT_CLAIMED
                self.running.add(response_id)
                await asyncio.Event().wait()
            case "until":
                await until(lambda: self.store.exists("go"))
            case "block":
                LOOP.wait()
                LOOP.wait()
            case "fail":
                try:
                    raise ValueError(SECRET)
                except ValueError as error:
                    raise ResponseFailed("server_error", "it went wrong") from error
            case "bug":
                raise ValueError(SECRET)
            case "leave":
                self.stop_worker(7)
                await asyncio.Event().wait()
        await self.write_log("end", response_id)
        return OUTCOMES.get(response_id.split("-")[0], Outcome.COMPLETED)

    async def revoke(self, response_ids: Sequence[str]) -> Collection[str]:
        cancelled = []
        for response_id in response_ids:
            if await self.store.sadd("cancelled", response_id):
                cancelled.append(response_id)
        return cancelled

    async def discarded(self, response_id: str) -> None:
        await self.store.sadd("discarded", response_id)


@asynccontextmanager
async def pretend_lifespan(redis_url: str, stop_worker: StopWorker) -> AsyncIterator[PretendRunner]:
    patience = Retry(ConstantBackoff(0.05), 600)
    url = redis_url.removesuffix("/7") + f"/{STORE}"
    store = redis.asyncio.from_url(url, decode_responses=True, max_connections=1000, retry=patience)
    try:
        match os.environ.get("PRETEND_START"):
            case "config":
                raise ConfigError("LONGHAUL_MODEL: no such model")
            case "crash":
                raise RuntimeError("the engine\ndid not start")
            case "slow":
                await store.rpush("log", "loading slow")
                await asyncio.Event().wait()
        await store.rpush("log", "enter lifespan")
        yield PretendRunner(store, stop_worker)
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await store.rpush("log", "leave lifespan")
        await store.aclose()


class Stuck(bootsteps.StartStopStep):  # type: ignore[misc]
    """A part of Celery's worker that never stops."""

    def start(self, _consumer: Any) -> None:
        pass

    def stop(self, _consumer: Any) -> None:
        threading.Event().wait()


def raise_error(state: Any) -> dict[str, str]:
    """Raises an error in Celery's main thread that Celery does not expect."""

    def fail() -> None:
        raise AttributeError("pretended")

    state.consumer.hub.call_soon(fail)
    return {"ok": "about to"}


def meet_loop(_state: Any) -> dict[str, str]:
    """Waits for a response that blocks the pool's loop; the second call lets the loop go on."""
    LOOP.wait()
    return {"ok": "met"}


def count_objects(state: Any, kinds: Sequence[str]) -> dict[str, int]:
    """Counts the objects of these types. The first call disables the garbage collector."""
    if gc.isenabled():
        gc.collect()
        gc.disable()
    return count(*kinds)


def __getattr__(name: str) -> Any:
    """`celery`, for `celery -A tests.support.queue_app:celery`; made in worker processes only."""
    if name != "celery":
        raise AttributeError(name)
    settings = load_settings()

    def lifespan(stop_worker: StopWorker, _: str) -> AbstractAsyncContextManager[Runner]:
        return pretend_lifespan(settings.broker_url, stop_worker)

    celery = globals()["celery"] = make_worker_app(settings, lifespan, WorkerReadiness())
    Panel.data.update(raise_error=raise_error, meet_loop=meet_loop, count_objects=count_objects)
    if os.environ.get("PRETEND_STOP") == "never":
        program.STOP_SECONDS = 1.0
        celery.steps["consumer"].add(Stuck)
    return celery
