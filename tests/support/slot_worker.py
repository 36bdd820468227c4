"""A worker without Celery and without an engine: it claims what is sent to it, and has so many slots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

import redis.asyncio

from app.aio import end_tasks
from app.dispatcher import Dispatcher
from app.queue.message import Kind, worker_list
from app.queue.publisher import TaskQueue
from app.scheduling.loads import Ahead
from app.store.database import Database
from app.store.queue import workers
from app.store.responses import claims, logs
from app.store.rows import ResponseRow
from config.settings import load_settings
from tests.support.rows import Writer
from tests.support.waiting_rows import QUEUE, with_slots
from workers.generation.slots import Slots
from workers.pace import Pace

AT_ONCE = 8
"""Messages that a worker takes at a time (workers/celery_host/fetch.py)."""
PAUSE = 0.002
BEAT_SECONDS = 0.5
LEASE_SECONDS = 3600.0


def late(turns: Sequence[int], places: int) -> int:
    """How many ran after one that stood more than so many places behind them in the order."""
    return sum(first - turn > places for first, turn in zip(accumulate(turns, max), turns, strict=True))


class SlotWorker:
    """Claims as a worker does, with the real dispatcher. `tokens` is what each response takes, by its project."""

    def __init__(self, db: Database, redis_url: str, slots: int, name: str = "w") -> None:
        settings = load_settings(REDIS_URL=redis_url)
        self.db = db
        self.name = name
        self.pace = Pace()
        self.slots = Slots(slots, self.pace, slots)
        self.claimed: list[ResponseRow] = []
        """In the order of their claims."""
        self.tokens: dict[str, int] = {}
        self.turn = asyncio.Event()
        """While it is set, responses end as soon as they were claimed; otherwise they hold their slots."""
        self.turn.set()
        self.seconds = 0.0
        """How long each response holds its slot."""
        self.pause = PAUSE
        """Seconds between two looks at its lists."""
        self.most_in_redis = 0
        self.queue = TaskQueue(settings)
        self.dispatcher = Dispatcher(db, self.queue, lambda: Ahead(name, self.slots.ahead))
        self.redis = redis.asyncio.from_url(redis_url)
        self._places = asyncio.Semaphore(slots)
        self._runs: set[asyncio.Task[None]] = set()
        self._names = [f"{worker_list(QUEUE, name)}{kind}" for kind in (Kind.FOREGROUND, Kind.ANSWERS)]

    async def work(self) -> None:
        """Takes and runs what comes, until cancelled."""
        while True:
            if not (ids := await self._take()):
                await asyncio.sleep(self.pause)
                continue
            rows = await claims.claim_all(self.db, [(each, self.name) for each in ids])
            for row in rows:
                if isinstance(row, ResponseRow):
                    self.claimed.append(row)
                    run = asyncio.create_task(self.run(row))
                    self._runs.add(run)
                    run.add_done_callback(self._end)

    async def close(self) -> None:
        await end_tasks(*self._runs)
        await self.dispatcher.close()
        await self.queue.close()
        await self.redis.aclose()

    @property
    def is_full(self) -> bool:
        """Whether every slot is taken."""
        return self._places.locked()

    async def in_redis(self) -> int:
        """The messages that were sent to it, and not taken yet."""
        return sum([int(await self.redis.llen(name)) for name in self._names])

    async def _take(self) -> list[str]:
        self.most_in_redis = max(self.most_in_redis, await self.in_redis())
        for name in self._names:
            if found := await self.redis.rpop(name, AT_ONCE):
                return [json.loads(each)["headers"]["id"] for each in found]
        return []

    def _end(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        if not run.cancelled():
            run.result()

    async def run(self, row: ResponseRow) -> None:
        """Runs what it has claimed, to the next dispatch."""
        async with self._places:
            await self.generate(row)
            writer = Writer(row, self.name)
            await logs.append(self.db, [writer.begin()])
            await logs.append(self.db, [writer.finish()])
        self.pace.note_end()
        self.dispatcher.correct_flow(row, self.tokens.get(row.project, row.cost or 0), self.seconds, cut_short=False)
        self.dispatcher.nudge(QUEUE)

    async def generate(self, row: ResponseRow) -> None:
        """What the engine's part of a response takes."""
        await self.turn.wait()
        await asyncio.sleep(self.seconds)


@asynccontextmanager
async def slot_worker(db: Database, redis_url: str, slots: int) -> AsyncIterator[SlotWorker]:
    """A worker at work, with so many slots that are open to all."""
    worker = SlotWorker(db, redis_url, slots)
    async with at_work(worker):
        yield worker


@asynccontextmanager
async def at_work(worker: SlotWorker) -> AsyncIterator[None]:
    """The worker is registered, and claims what is sent to it."""
    async with workers.presence(worker.db, worker.name):
        slots = await with_slots(worker.db, worker.slots.count, worker.name)
        beating: asyncio.Task[Any] = asyncio.create_task(_beat(worker, slots))
        working: asyncio.Task[Any] = asyncio.create_task(worker.work())
        try:
            yield
        finally:
            await end_tasks(working, beating)
            await worker.close()


async def _beat(worker: SlotWorker, slots: int) -> None:
    """Heartbeats: on a busy machine a message may be late, and then the worker counts with fewer slots."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await workers.heartbeat(worker.db, worker.name, LEASE_SECONDS, {}, slots)
