"""Followers of a batch's results: they look when maintenance has numbered some, and share what they read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial

from app.aio import BackgroundTasks, Turns
from app.batches.batch_object import batch_object
from app.batches.results import result
from app.batches.writer import ended_by
from app.heavy import off_loop
from app.protocol.events.frames import encode_line
from app.store.batches import results, rows
from app.store.batches.results import Order, ResultRow, read_results
from app.store.batches.rows import BatchRow
from app.store.database import Database, StoreUnavailable
from app.streaming.pubsub import PubSub

FOLLOW_SECONDS = 2.0
"""How often they look without a ring: Redis may have lost it."""
PAUSE_SECONDS = 0.1
"""The shortest pause between two looks."""


def doorbell_of(batch_id: str) -> str:
    """The doorbell that rings once a batch has new results, or has ended."""
    return f"results.{batch_id}"


@dataclass(frozen=True, slots=True)
class _Page:
    """The next results, as lines, and the batch as it is behind them; None: it is gone."""

    shown: bytes
    last: int
    batch: BatchRow | None


class Followers:
    """The followers of this process. While Postgres is away they wait for it, as readers of events do."""

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub
        self._reading: dict[tuple[str, int], asyncio.Task[_Page]] = {}
        """The reads under way, by their batch and the number that each begins behind."""
        self._tasks = BackgroundTasks()
        self._turns = Turns()

    async def close(self) -> None:
        """Breaks off what is being read."""
        await self._tasks.close(0)

    async def follow(self, row: BatchRow, after: int) -> AsyncGenerator[bytes, None]:
        """See `BatchService.follow`."""
        async with self._pubsub.listen(doorbell_of(row.id)) as doorbell:
            while True:
                doorbell.clear_missed()  # before the look: what comes during it is not lost
                try:
                    page = await self._page(row, after)
                except StoreUnavailable:
                    page = _Page(b"", after, row)
                else:
                    if not page.shown and row.status.final:
                        yield encode_line({"batch": batch_object(row)}) + b"\n"
                        return
                    if page.batch is None and not page.shown:
                        return
                row = page.batch or row
                if page.shown:
                    await self._turns.take(row.project)
                    yield page.shown
                    after = page.last
                else:
                    await asyncio.sleep(PAUSE_SECONDS)
                    await doorbell.wait(FOLLOW_SECONDS)
                    yield b""

    async def _page(self, row: BatchRow, after: int) -> _Page:
        """All who are at the same place share one read."""
        place = row.id, after
        if place not in self._reading:
            self._reading[place] = self._tasks.start(self._read(row, after))
            self._reading[place].add_done_callback(lambda _: self._reading.pop(place, None))
        return await asyncio.shield(self._reading[place])

    async def _read(self, row: BatchRow, after: int) -> _Page:
        found = await read_results(self._db, row.id, after, Order.NUMBER)
        # Those that their batch has cancelled say so: the batch as it is behind them.
        batch = await rows.find(self._db, row.project, row.id)
        if not found:
            return _Page(b"", after, batch)
        shown = await off_loop(partial(self._shown, batch or row, found), results.PAGE_BYTES)
        return _Page(shown, found[-1].number or after, batch)

    def _shown(self, row: BatchRow, found: Sequence[ResultRow]) -> bytes:
        shown = []
        for each in found:
            line = result(each, row.endpoint, ended_by(row))
            shown.append(b'{"number":%d,%b' % (each.number or 0, line.data[1:]))
        return b"".join(shown)
