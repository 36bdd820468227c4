"""A worker without Celery: the real runner, journal, lease and scripted engine on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from app.dispatcher import Dispatcher
from app.metrics.instruments import WorkerMetrics
from app.protocol.types import Json
from app.queue.node import new_node
from app.queue.publisher import TaskQueue
from app.store.database import Database
from app.store.roles.rights import WORKER
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.models import ServedModel
from config.settings import load_settings
from config.worker_readiness import WorkerReadiness
from tests.support.logs import events_of
from tests.support.roles import as_role
from tests.support.scripted import SCRIPTED, ScriptedEngine
from tests.support.tool_servers import tool_sessions
from tests.support.waiting import PATIENCE_SECONDS, until
from workers.engine.base import Engine
from workers.generation import lease
from workers.generation.claimer import Claimer
from workers.generation.errors import ErrorHandler
from workers.generation.generator import Generator
from workers.generation.lease import Lease, identity_of
from workers.generation.outcome import Cancelled, Outcome, current_job
from workers.generation.run import ActiveRuns
from workers.generation.runner import Runner
from workers.generation.slots import Slots
from workers.generation.turns.counter import Counter
from workers.generation.turns.inputs import Context, Inputs
from workers.generation.writing.flush_clock import FlushClock
from workers.generation.writing.journal import Journal
from workers.mcp.sessions import McpSessions
from workers.request_log import RequestLog

MAX_CRASHES = 2
NO_LIMIT = 2**62
"""Bytes of a context."""
STALLED_LEASES = 10_000
"""A loop that is slow must not end the process of the tests, however short a test's lease is."""


def scripted_model(name: str = "scripted", context_length: int | None = None, **engine_args: Any) -> ServedModel:
    return ServedModel(name, "", f"model.{name}", SCRIPTED, context_length, engine_args)


async def items_of(db: Database, row: ResponseRow, most_bytes: int = NO_LIMIT) -> list[Json]:
    """What a worker builds the prompt of the response from."""

    async def same(items: list[Json]) -> list[Json]:
        return items

    return await Context(Inputs(db, most_bytes, NO_LIMIT), row).use(same)


class Job:
    """Runs a response as a job of the pool does."""

    def __init__(self, runner: Runner, response_id: str) -> None:
        self._state = SimpleNamespace(cancelled=None, request=None)
        self.task = asyncio.create_task(self._run(runner, response_id))

    async def _run(self, runner: Runner, response_id: str) -> Outcome:
        current_job.set(self._state)
        return await runner.run(response_id)

    async def stop(self, why: Cancelled) -> Outcome:
        """Cancels the run as the pool does; returns its outcome."""
        self._state.cancelled = why
        self.task.cancel()
        return await self.task


class NoDispatcher(Dispatcher):
    """Dispatches nothing, and notes what flows are corrected by."""

    def __init__(self) -> None:
        self.corrected: list[tuple[str, int, bool]] = []
        """Each response that ended: its id, the tokens that it took, and whether it was cut short."""

    def nudge(self, queue: str) -> None:
        pass

    def correct_flow(self, row: ResponseRow, used: int, seconds: float = 0.0, *, cut_short: bool) -> None:
        self.corrected.append((row.id, used, cut_short))


def lease_of(
    engine: Engine,
    model: ServedModel,
    db: Database,
    seconds: float,
    runs: ActiveRuns,
    slots: Slots,
    node: str,
    readiness: WorkerReadiness | None = None,
    on_end: Callable[[], None] = lambda: None,
    on_more_slots: Callable[[], None] = lambda: None,
) -> Lease:
    """A lease that tells nobody what becomes of it, unless a test asks."""
    identity = identity_of(model, engine, node, slots.offered)
    shown = readiness or WorkerReadiness()
    return Lease(db, identity, seconds, runs, slots, shown, on_end=on_end, on_more_slots=on_more_slots)


class Worker:
    """The parts of a worker, without Celery."""

    def __init__(
        self,
        db: Database,
        pubsub: PubSub,
        model: ServedModel,
        lease_seconds: float,
        mcp_sessions: McpSessions | None = None,
        events_per_second: float = 0.0,
        held_context_bytes: int = NO_LIMIT,
        dispatcher: Dispatcher | None = None,
        engine: Engine | None = None,
        limit: int | None = None,
        queue: TaskQueue | None = None,
    ) -> None:
        """`queue` is for prompts to count.

        `limit` is the most responses that it runs at once; None: as many as its engine has slots.
        """
        self.engine = engine or ScriptedEngine(model)
        self.registry = CollectorRegistry()
        metrics = WorkerMetrics(model.name, self.registry)
        self.journal = Journal(db, pubsub, metrics)
        self.engine_deaths = 0
        self.jobs: list[asyncio.Task[Outcome]] = []
        self.runs = ActiveRuns()
        slots = Slots(self.engine.slots, limit or self.engine.slots, cache_tokens=self.engine.cache_tokens)
        self.node = new_node(model.name)
        self.mcp_sessions = mcp_sessions or tool_sessions()
        self.lease = lease_of(self.engine, model, db, lease_seconds, self.runs, slots, self.node)
        slots.changed = self.lease.renew_now
        self.dispatcher = dispatcher or NoDispatcher()
        inputs = Inputs(db, NO_LIMIT, held_context_bytes)
        clock = FlushClock(events_per_second)
        queue = queue or TaskQueue(load_settings(REDIS_URL="redis://127.0.0.1:1"))
        self.counter = Counter(inputs, self.engine, model, self.mcp_sessions, queue, pubsub)
        self.runner = Runner(
            claimer=Claimer(db, self.runs, lambda: self.lease.worker, metrics),
            runs=self.runs,
            generator=Generator(db, self.engine, slots, model, inputs, self.mcp_sessions, self.journal, clock, metrics),
            errors=ErrorHandler(db, self.journal, MAX_CRASHES, self._on_engine_death),
            dispatcher=self.dispatcher,
            slots=slots,
            node=self.node,
            command_key=b"",
            counter=self.counter,
            metrics=metrics,
            requests=RequestLog("off"),
        )

    def _on_engine_death(self) -> None:
        self.engine_deaths += 1

    def start(self, response_id: str) -> Job:
        job = Job(self.runner, response_id)
        self.jobs.append(job.task)
        return job

    async def run(self, response_id: str) -> Outcome:
        return await self.start(response_id).task


@asynccontextmanager
async def worker(
    db: Database,
    pubsub: PubSub,
    lease_seconds: float = 60.0,
    context_length: int | None = None,
    mcp_sessions: McpSessions | None = None,
    events_per_second: float = 0.0,
    held_context_bytes: int = NO_LIMIT,
    dispatcher: Dispatcher | None = None,
    queue: TaskQueue | None = None,
    **engine_args: Any,
) -> AsyncIterator[Worker]:
    """A started worker on a scripted engine. Without a dispatcher nothing is dispatched."""
    model = scripted_model(context_length=context_length, **engine_args)
    own = as_role(db, WORKER)
    more = (mcp_sessions, events_per_second, held_context_bytes, dispatcher)
    made = Worker(own, pubsub, model, lease_seconds, *more, queue=queue)
    await made.engine.start()
    with patch.object(lease, "STALLED_LEASES", STALLED_LEASES):
        await made.lease.start()
        try:
            yield made
        finally:
            await _stop(made)


async def stop_and_go(db: Database, pubsub: PubSub, response_id: str, every: int, **more: Any) -> int:
    """Runs a response whose worker stops after `every` few events; returns the number of workers that it took."""
    attempts, outcome = 0, Outcome.RELEASED
    while outcome is Outcome.RELEASED:
        attempts += 1
        before = len(await events_of(db, response_id))
        # The engine catches up with its rate: at the first attempt it must not be done before anybody has looked.
        async with worker(db, pubsub, tokens_per_second=5.0 if attempts == 1 else 150.0, **more) as w:
            job = w.start(response_id)

            async def moved(seen: int = before + (6 if attempts == 1 else every), job: Job = job) -> bool:
                return job.task.done() or len(await events_of(db, response_id)) >= seen

            await until(moved, what="a few more events")
            outcome = await job.stop(Cancelled.SHUTDOWN)
    return attempts


async def _stop(made: Worker) -> None:
    await made.lease.close()
    await made.journal.close()
    await made.engine.stop()
    if made.jobs:  # those that the engine's end ends release their responses, and need their connections
        await asyncio.wait(made.jobs, timeout=PATIENCE_SECONDS)
    await made.mcp_sessions.close()


SLOW = {"tokens_per_second": 300.0}


async def committed(db: Database, response_id: str, events: int, job: Job | None = None) -> None:
    """Waits until the log has that many events, or until the job has ended."""

    async def enough() -> bool:
        has_ended = job is not None and job.task.done()
        return has_ended or len(await events_of(db, response_id)) >= events

    await until(enough, what=f"{events} events of {response_id}")
