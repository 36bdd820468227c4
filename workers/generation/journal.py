"""Group commit: the chunks of all running responses go to Postgres in one statement, then to readers.

There is no timer: an idle journal commits the next chunk at once, and under load commits grow larger, not more
frequent (`app/batching.py`). Chunks are published after their commit, in the order of commits, beside the next commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app.aio import end_tasks
from app.batching import Batcher
from app.protocol.events.chunk import Chunk
from app.protocol.text import type_and_places
from app.store.database import Database, Patience, StoreBusy, StoreUnavailable
from app.store.responses import logs as store
from app.store.responses.logs import Entry
from app.store.trouble import Trouble, trouble_of
from app.streaming.pubsub import PubSub

log = logging.getLogger("longhaul.journal")

CLOSE_SECONDS = 2.0
MAX_BATCH = 512
"""Entries of one commit; a large one counts as several (`store.weight`)."""


class Journal:
    """Commits the chunks of all responses of a worker in one statement, and publishes them.

    A response has at most one entry here: its writer waits for the commit before it appends the next one. Large
    entries are committed one by one beside the others, which do not wait for them.
    """

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub
        self._commits = Batcher(
            self._commit, max_items=MAX_BATCH, weight=store.weight, shared_errors=(StoreUnavailable,)
        )
        self._large_commits = Batcher(self._commit, max_items=1, shared_errors=(StoreUnavailable,))
        self._unpublished: list[Chunk] = []
        self._publisher: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Cancels the commits that wait, and publishes what was committed, for CLOSE_SECONDS: readers poll Postgres."""
        await self._commits.close()
        await self._large_commits.close()
        if self._publisher is not None:
            await asyncio.wait([self._publisher], timeout=CLOSE_SECONDS)
            await end_tasks(self._publisher)

    def append(self, entry: Entry) -> asyncio.Future[bool]:
        """The future of the entry's commit. False: it was fenced, the response is not this worker's any more.

        While Postgres is away the future waits. An entry with values that Postgres refuses gets the error; the others
        do not. If Postgres ends the commit again and again, all its entries get StoreBusy.
        """
        return (self._large_commits if store.is_large(entry) else self._commits).submit(entry)

    def publish(self, *chunks: Chunk) -> None:
        """Publishes committed chunks after all that were committed before."""
        self._unpublished += chunks
        if self._unpublished and (self._publisher is None or self._publisher.done()):
            self._publisher = asyncio.create_task(self._publish(), name="journal-publisher")

    async def _commit(self, entries: Sequence[Entry]) -> list[bool]:
        """Whether each entry was committed; a fenced one was not."""
        try:
            appended = await self._append(entries)
        except Exception as error:
            if len(entries) == 1:  # the batcher tries each entry of a larger batch alone
                chunk = entries[0].chunk
                events = f"events {chunk.first}-{chunk.last} of {chunk.response_id}"
                log.error("cannot commit %s: %s", events, type_and_places(error))  # its text may quote the output
            raise
        self.publish(*[entry.chunk for entry in entries if entry.chunk.response_id in appended])
        return [entry.chunk.response_id in appended for entry in entries]

    async def _append(self, entries: Sequence[Entry]) -> set[str]:
        """Appends the entries once Postgres can; returns the ids of those that were not fenced."""
        patience, away = Patience(), False
        while True:
            try:
                appended = await _append_once(self._db, entries)
            except StoreUnavailable as error:
                if not away:
                    log.warning(
                        "Postgres is away or busy (%s); %d responses wait for their commit", error, len(entries)
                    )
                away = True
                await patience.wait(error)
            else:
                if away:
                    log.info("Postgres is back")
                return appended

    async def _publish(self) -> None:
        while self._unpublished:
            chunks, self._unpublished = self._unpublished, []
            await self._pubsub.publish(chunks)


async def _append_once(db: Database, entries: Sequence[Entry]) -> set[str]:
    """Raises StoreBusy for an error that is no entry's fault, such as a missing privilege."""
    try:
        return await store.append(db, entries)
    except Exception as error:
        if trouble_of(error) is Trouble.BUG:
            log.error("Postgres refuses to commit: %s", type_and_places(error))
            raise StoreBusy(type(error).__name__) from error
        raise
