"""A worker without Celery and without an engine: slots that take messages from the real Redis, one turn each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio

from app.aio import end_tasks
from app.dispatcher import Dispatcher
from app.queue.message import Kind
from app.queue.publisher import TaskQueue
from app.store.database import Database
from app.store.queue import workers
from app.store.responses import claims, logs
from app.store.rows import ResponseRow
from config.settings import load_settings
from tests.support.rows import Writer
from tests.support.waiting_rows import QUEUE, with_slots
from workers.pace import Pace

AT_ONCE = 8
"""Messages that a worker takes at a time (workers/celery_host/fetch.py)."""
PAUSE = 0.002


class SlotWorker:
    """Claims as a worker does, with the real dispatcher. `tokens` is what each response takes, by its project."""

    def __init__(self, db: Database, redis_url: str, slots: int, window: int, name: str = "w") -> None:
        settings = load_settings(REDIS_URL=redis_url)
        self.db = db
        self.name = name
        self.slots = slots
        self.claimed: list[ResponseRow] = []
        """In the order of their claims."""
        self.tokens: dict[str, int] = {}
        self.turn = asyncio.Event()
        """While it is set, responses end as soon as they were claimed; otherwise they hold their slots."""
        self.turn.set()
        self.seconds = 0.0
        """How long each response holds its slot."""
        self.most_in_redis = 0
        self.queue = TaskQueue(settings)
        self.pace = Pace()
        self.dispatcher = Dispatcher(db, self.queue, window, self.pace.ended_within)
        self.redis = redis.asyncio.from_url(redis_url)
        self._free = slots
        self._runs: set[asyncio.Task[None]] = set()
        self._names = [f"{QUEUE}{kind}" for kind in reversed(Kind)]

    async def work(self) -> None:
        """Takes and runs what comes, until cancelled."""
        while True:
            ids = await self._take(min(self._free, AT_ONCE)) if self._free else []
            if not ids:
                await asyncio.sleep(PAUSE)
                continue
            rows = await claims.claim_all(self.db, [(each, self.name) for each in ids])
            self.dispatcher.nudge(QUEUE)
            for row in rows:
                if isinstance(row, ResponseRow):
                    self._start(row)

    async def close(self) -> None:
        await end_tasks(*self._runs)
        await self.dispatcher.close()
        await self.queue.close()
        await self.redis.aclose()

    async def is_full(self) -> bool:
        """Whether every slot is taken, and the window is so full that nothing is dispatched."""
        return self._free == 0 and 2 * await self.in_redis() > self.slots

    async def in_redis(self) -> int:
        """The messages of the queue."""
        return sum([int(await self.redis.llen(name)) for name in self._names])

    async def _take(self, count: int) -> list[str]:
        self.most_in_redis = max(self.most_in_redis, await self.in_redis())
        for name in self._names:
            if found := await self.redis.rpop(name, count):
                return [json.loads(each)["headers"]["id"] for each in found]
        return []

    def _start(self, row: ResponseRow) -> None:
        self.claimed.append(row)
        self._free -= 1
        run = asyncio.create_task(self._run(row))
        self._runs.add(run)
        run.add_done_callback(self._end)

    def _end(self, run: asyncio.Task[None]) -> None:
        self._runs.discard(run)
        self._free += 1
        if not run.cancelled():
            run.result()

    async def _run(self, row: ResponseRow) -> None:
        await self.turn.wait()
        await asyncio.sleep(self.seconds)
        writer = Writer(row, self.name)
        await logs.append(self.db, [writer.begin()])
        await logs.append(self.db, [writer.finish()])
        self.pace.note_end()
        self.dispatcher.correct_flow(row, self.tokens.get(row.project, row.cost or 0), cut_short=False)


@asynccontextmanager
async def slot_worker(db: Database, redis_url: str, slots: int, window: int = 32) -> AsyncIterator[SlotWorker]:
    """A registered worker at work."""
    worker = SlotWorker(db, redis_url, slots, window)
    async with workers.presence(db, worker.name):
        await with_slots(db, slots, worker.name)
        working: asyncio.Task[Any] = asyncio.create_task(worker.work())
        try:
            yield worker
        finally:
            await end_tasks(working)
            await worker.close()
