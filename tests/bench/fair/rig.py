"""What the questions about the queue share: services, emptied for each question, and slots without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from sqlalchemy import text

from app.maintenance.loop import Maintenance
from app.queue.publisher import TaskQueue
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import migrate
from app.streaming.pubsub import PubSub
from config.settings import load_settings
from tests.bench.results import Results
from tests.support.services import AS_OWNER, Services
from tests.support.slot_worker import SlotWorker, slot_worker
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE

SLOTS = 16
PATIENCE = 600.0
MIB = 1 << 20
_EMPTY = "TRUNCATE responses, conversations, workers, flows, queues, settlements CASCADE"

Say = Callable[[str], None]


@asynccontextmanager
async def started_rig(results: Results, say: Say, size: float) -> AsyncIterator[Rig]:
    """Services with the schema, and a rig on them."""
    services = await asyncio.to_thread(Services)
    try:
        owner = Database(services.owner_url, 1)
        await migrate(owner)
        await owner.close()
        db = Database(services.database_url, 10)
        try:
            yield Rig(services, db, results, say, size)
        finally:
            await db.close()
    finally:
        services.close()


@dataclass(frozen=True, slots=True)
class Rig:
    """`size` shrinks how many responses are queued."""

    services: Services
    db: Database
    results: Results
    say: Say
    size: float

    def count(self, number: int, least: int = 64) -> int:
        return max(least, round(number * self.size))

    def found(self, what: str, of: str, found: str, wanted: str, *, met: bool) -> None:
        row = {"what": what, "of": of, "measured": found, "required": wanted, "met": "yes" if met else "**no**"}
        self.results.rows.append(row)
        self.results.save()
        self.say(f"  {'; '.join(row.values())}")

    async def empty(self) -> None:
        async with self.db.begin() as connection:
            await connection.execute(text(AS_OWNER))
            await connection.execute(text(_EMPTY))
            await connection.execute(text("DELETE FROM projects WHERE id <> 'default'"))
        async with redis.asyncio.from_url(self.services.redis_url) as client:
            await client.flushall()

    @asynccontextmanager
    async def worker(self, slots: int = SLOTS) -> AsyncIterator[SlotWorker]:
        """A worker whose first dispatch, which is maintenance's, was made."""
        async with slot_worker(self.db, self.services.redis_url, slots) as worker:
            worker.dispatcher.nudge(QUEUE)
            yield worker

    @asynccontextmanager
    async def maintenance(self) -> AsyncIterator[None]:
        """Maintenance at work."""
        settings = load_settings(REDIS_URL=self.services.redis_url)
        pubsub, queue = PubSub(settings.broker_url, pubsub_key(self.db)), TaskQueue(settings)
        maintenance = Maintenance(settings, self.db, pubsub, queue, round_seconds=0.1)
        running: asyncio.Task[Any] = asyncio.create_task(maintenance.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])
            await queue.close()
            await pubsub.close()

    async def claims(self, worker: SlotWorker, count: int) -> None:
        await until(lambda: len(worker.claimed) >= count, timeout=PATIENCE, what=f"{count} claims")
