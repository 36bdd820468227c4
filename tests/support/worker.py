"""A worker without Celery: the real runner, journal, lease and scripted engine on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from app.store.database import Database
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.models import ServedModel
from workers.engine.scripted.engine import ScriptedEngine
from workers.generation.cancellation import Cancelled, current_job
from workers.generation.coalescing import NOTHING_HELD_BACK, Granularity
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.outcome import Outcome
from workers.generation.runner import Runner
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


class Job:
    """One run, as a pool's job would do it."""

    def __init__(self, runner: Runner, response_id: str) -> None:
        self._state = SimpleNamespace(cancelled=None, request=None)
        self.task = asyncio.create_task(self._run(runner, response_id))

    async def _run(self, runner: Runner, response_id: str) -> Outcome:
        current_job.set(self._state)
        return await runner.run(response_id)

    async def stop(self, why: Cancelled) -> Outcome:
        """Cancels it as the pool does, and waits for its clean-up."""
        self._state.cancelled = why
        self.task.cancel()
        return await self.task


class Worker:
    def __init__(
        self,
        db: Database,
        pubsub: PubSub,
        model: ServedModel,
        lease_seconds: float,
        workshop: McpSessions | None = None,
        granularity: Granularity = NOTHING_HELD_BACK,
    ) -> None:
        self.engine = ScriptedEngine(model)
        self.journal = Journal(db, pubsub)
        self.again: list[str] = []
        self.died = 0
        self.runner = Runner(db, self.journal, self.engine, model, 2, self._again, self._died, workshop, granularity)
        self.lease = self.runner.lease = Lease(db, model, lease_seconds, self.runner.running, self.runner.lost)

    async def _again(self, row: ResponseRow) -> None:
        self.again.append(row.id)

    def _died(self) -> None:
        self.died += 1

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
    workshop: McpSessions | None = None,
    granularity: Granularity = NOTHING_HELD_BACK,
    **engine_args: Any,
) -> AsyncIterator[Worker]:
    """A started worker on a scripted engine."""
    model = scripted_model(context_length=context_length, **engine_args)
    made = Worker(db, pubsub, model, lease_seconds, workshop, granularity)
    await made.engine.start()
    await made.journal.start()
    await made.lease.start()
    try:
        yield made
    finally:
        await made.lease.close()
        await made.journal.close()
        await made.engine.stop()
