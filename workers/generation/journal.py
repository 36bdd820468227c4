"""Group commit: what all running responses have to say goes to Postgres in one statement.

No timer. An idle journal commits the very next chunk at once; while a commit is under way, chunks gather
for the next one, so load makes batches bigger, not more frequent. Chunks are published once they are
committed, in the order of their commits, beside the next commit; a doorbell that fails is only logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from app.aio import end_tasks
from app.protocol.events.chunk import Chunk
from app.store import journal as store
from app.store.database import Database, StoreUnavailable
from app.store.journal import Entry
from app.streaming.pubsub import PubSub, PubSubUnavailable

log = logging.getLogger("longhaul.journal")

RETRY_SECONDS = 0.5
MAX_BATCH = 512


class Journal:
    """One per worker process. Entries of one response come one at a time: its runner waits for each."""

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub
        self._pending: list[tuple[Entry, asyncio.Future[bool]]] = []
        self._work = asyncio.Event()
        self._unpublished: list[Chunk] = []
        self._bell = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop
        """Kept: Python 3.11 asks the kernel at every `get_running_loop`."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = [
            asyncio.create_task(self._write(), name="journal"),
            asyncio.create_task(self._ring(), name="journal-publisher"),
        ]

    async def close(self) -> None:
        """Ends; whoever still waits for a commit is cancelled. Nothing committed goes unpublished."""
        await end_tasks(*self._tasks)
        for _, committed in self._pending:
            committed.cancel()
        with contextlib.suppress(PubSubUnavailable):
            await self._publish()

    def append(self, entry: Entry) -> asyncio.Future[bool]:
        """Hands an entry over. The future says whether it was committed; False: the response is not ours any more.

        While Postgres is away the future waits, and the entry with it.
        """
        committed: asyncio.Future[bool] = self._loop.create_future()
        self._pending.append((entry, committed))
        self._work.set()
        return committed

    def publish(self, chunk: Chunk) -> None:
        """Rings for a chunk that somebody else committed (a cancellation), after all that was committed before."""
        self._unpublished.append(chunk)
        self._bell.set()

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
            if not self._pending:
                self._work.clear()
            try:
                await self._commit(batch)
            except asyncio.CancelledError:
                self._pending = batch + self._pending
                raise

    async def _commit(self, batch: Sequence[tuple[Entry, asyncio.Future[bool]]]) -> None:
        try:
            mine = await self._append([entry for entry, _ in batch])
        except Exception as error:
            if len(batch) > 1:  # one bad entry must not take the others with it
                for single in batch:
                    await self._commit([single])
                return
            (entry, committed) = batch[0]
            chunk = entry.chunk
            log.exception("cannot commit events %d-%d of %s", chunk.first, chunk.last, chunk.response_id)
            if not committed.done():
                committed.set_exception(error)
            return
        for entry, committed in batch:
            took_effect = entry.chunk.response_id in mine
            if took_effect:
                self.publish(entry.chunk)
            if not committed.done():
                committed.set_result(took_effect)

    async def _append(self, entries: Sequence[Entry]) -> set[str]:
        away = False
        while True:
            try:
                mine = await store.append(self._db, entries)
            except StoreUnavailable as error:
                if not away:
                    log.warning("Postgres is away (%s); holding %d responses", error, len(entries))
                away = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                if away:
                    log.info("Postgres is back")
                return mine

    async def _ring(self) -> None:
        away = False
        while True:
            await self._bell.wait()
            self._bell.clear()
            try:
                await self._publish()
                away = False
            except PubSubUnavailable as error:
                # Readers find in Postgres what is not rung for.
                if not away:
                    log.warning("Redis is away (%s); readers look into Postgres", error)
                away = True

    async def _publish(self) -> None:
        chunks, self._unpublished = self._unpublished, []
        if chunks:
            await self._pubsub.publish(chunks)
