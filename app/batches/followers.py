"""Followers of a batch's results: all of one process look together, when maintenance has numbered some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
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


class _Watch:
    """One batch that is followed."""

    def __init__(self) -> None:
        self.followers = 0
        self.news = asyncio.Event()
        """Set, and replaced, at the next look."""
        self.reading: dict[int, asyncio.Task[_Page]] = {}
        """The reads under way, by the number that each begins behind."""


class Followers:
    """The followers of this process. While Postgres is away they wait for it, as readers of events do."""

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub
        self._watches: dict[str, _Watch] = {}
        self._tasks = BackgroundTasks()
        self._turns = Turns()

    async def close(self) -> None:
        """Breaks off what is being read."""
        await self._tasks.close(0)

    async def follow(self, row: BatchRow, after: int) -> AsyncGenerator[bytes, None]:
        """See `BatchService.follow`."""
        with self._watching(row.id) as watch:
            while True:
                news = watch.news  # before the look: what comes during it is not lost
                try:
                    page = await self._page(watch, row, after)
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
                    await news.wait()
                    yield b""

    @contextmanager
    def _watching(self, batch_id: str) -> Iterator[_Watch]:
        watch = self._watches.setdefault(batch_id, _Watch())
        watch.followers += 1
        if watch.followers == 1:
            looking = self._tasks.start(self._look(batch_id, watch))
            looking.set_name(f"results of {batch_id}")
        try:
            yield watch
        finally:
            watch.followers -= 1
            if not watch.followers and self._watches.get(batch_id) is watch:
                del self._watches[batch_id]
                watch.news.set()

    async def _look(self, batch_id: str, watch: _Watch) -> None:
        async with self._pubsub.listen(doorbell_of(batch_id)) as doorbell:
            while watch.followers:
                await doorbell.wait(FOLLOW_SECONDS)
                doorbell.clear_missed()
                news, watch.news = watch.news, asyncio.Event()
                news.set()
                await asyncio.sleep(PAUSE_SECONDS)

    async def _page(self, watch: _Watch, row: BatchRow, after: int) -> _Page:
        """All who are at the same place share one read."""
        if after not in watch.reading:
            reading = watch.reading[after] = self._tasks.start(self._read(row, after))
            reading.add_done_callback(lambda _: watch.reading.pop(after, None))
        return await asyncio.shield(watch.reading[after])

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
