"""A worker without Celery: the real runner, journal, lease and scripted engine on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from app.protocol.types import Json
from app.store.database import Database
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.models import ServedModel
from workers.dispatcher import Dispatcher
from workers.engine.scripted.engine import ScriptedEngine
from workers.generation.cancellation import Cancelled, current_job
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.look_ahead import LookAhead
from workers.generation.outcome import Outcome
from workers.generation.runner import Runner, WorkerParts
from workers.generation.runs import ActiveRuns
from workers.generation.turns.inputs import NO_LIMIT, Context, Inputs
from workers.mcp.sessions import McpSessions


def scripted_model(name: str = "scripted", context_length: int | None = None, **engine_args: Any) -> ServedModel:
    return ServedModel(
        name=name,
        path="",
        queue=f"model.{name}",
        context_length=context_length,
        engine="scripted",
        engine_args=engine_args,
        chat_template_args={},
        default_sampling={},
        reasoning_parser=None,
        tool_parser=None,
    )


async def items_of(db: Database, row: ResponseRow, most_bytes: int = NO_LIMIT) -> list[Json]:
    """What a worker builds the prompt of the response from."""

    async def same(items: list[Json]) -> list[Json]:
        return items

    return await Context(Inputs(db, most_bytes), row).use(same)


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
    ) -> None:
        self.engine = ScriptedEngine(model)
        self.journal = Journal(db, pubsub)
        self.redelivered: list[str] = []
        """The ids of released responses."""
        self.engine_deaths = 0
        self.runs = ActiveRuns()
        self.lease = Lease(db, model, lease_seconds, self.runs, self.engine.context_length, self.engine.slots)
        self.runner = Runner(
            WorkerParts(
                db=db,
                engine=self.engine,
                model=model,
                journal=self.journal,
                lease=self.lease,
                runs=self.runs,
                look_ahead=LookAhead(self.engine.slots),
                mcp_sessions=mcp_sessions or McpSessions(),
                events_per_second=events_per_second,
                side_concurrency=4,
                max_crashes=2,
                most_context_bytes=NO_LIMIT,
                held_context_bytes=held_context_bytes,
                send_released=self._send_released,
                claimed=partial(dispatcher.nudge, model.queue) if dispatcher else lambda: None,
                ended=dispatcher.correct_flow if dispatcher else lambda row, used: None,
                engine_died=self._on_engine_death,
            )
        )

    async def _send_released(self, row: ResponseRow) -> None:
        self.redelivered.append(row.id)

    def _on_engine_death(self) -> None:
        self.engine_deaths += 1

    def start(self, response_id: str) -> Job:
        return Job(self.runner, response_id)

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
    **engine_args: Any,
) -> AsyncIterator[Worker]:
    """A started worker on a scripted engine. Without a dispatcher nothing is dispatched."""
    model = scripted_model(context_length=context_length, **engine_args)
    made = Worker(db, pubsub, model, lease_seconds, mcp_sessions, events_per_second, held_context_bytes, dispatcher)
    await made.engine.start()
    await made.lease.start()
    try:
        yield made
    finally:
        await made.lease.close()
        await made.journal.close()
        await made.engine.stop()
