"""Group commit: the chunks of all running responses go to Postgres in one statement, then to readers.

There is no timer: an idle journal commits the next chunk at once, and under load commits grow larger, not more
frequent (`app/batching.py`). Chunks are published after their commit, in the order of commits, beside the next commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import compress
from weakref import WeakValueDictionary

from app.aio import end_tasks
from app.batching import Batcher
from app.protocol.events.chunk import Chunk
from app.protocol.text import type_and_places
from app.sizes import is_large, weight
from app.store.database import Database, Patience, StoreBusy, StoreUnavailable
from app.store.responses import logs
from app.store.responses.logs import Entry
from app.store.trouble import Trouble, trouble_of
from app.streaming.pubsub import PubSub

log = logging.getLogger("longhaul.journal")

CLOSE_SECONDS = 2.0
MAX_BATCH = 512
"""Entries of one commit; one of some size counts as several (`app.sizes.weight`)."""


class Refused(Exception):
    """Postgres, or its driver, does not take an entry. The text has no value of it: it goes to the log."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type_and_places(error))
        self.is_bug = trouble_of(error) is Trouble.BUG
        """Whether the entry may be right, and Postgres refuses everything: a privilege is missing, for instance."""


class Journal:
    """Commits the chunks of all responses of a worker in one statement, and publishes those that may have readers.

    Large entries are committed one by one beside the others, which do not wait for them.
    """

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub
        self._small = _Lane(self._commit, MAX_BATCH)
        self._large = _Lane(self._commit, 1)
        self._open: WeakValueDictionary[str, asyncio.Future[bool]] = WeakValueDictionary()
        """The commit of each response's last entry, as long as anybody waits for it."""
        self._unpublished: list[Chunk] = []
        self._publisher: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Cancels the commits that wait, and publishes what was committed, for CLOSE_SECONDS: readers poll Postgres."""
        await self._small.batches.close()
        await self._large.batches.close()
        if self._publisher is not None:
            await asyncio.wait([self._publisher], timeout=CLOSE_SECONDS)
            await end_tasks(self._publisher)

    def append(self, entry: Entry) -> asyncio.Future[bool]:
        """The future of the entry's commit. False: it was fenced, the response is not this worker's any more.

        While Postgres is away the future waits. An entry that Postgres does not take gets Refused; the others do not.
        If Postgres ends or refuses all commits again and again, their entries get StoreBusy. Raises RuntimeError if
        the response has an open entry: Postgres would refuse a statement with two.
        """
        response_id = entry.chunk.response_id
        if (last := self._open.get(response_id)) is not None and not last.done():
            raise RuntimeError(f"{response_id} has an open entry in the journal")
        lane = self._large if is_large(entry.size) else self._small
        commit = self._open[response_id] = lane.batches.submit(entry)
        return commit

    def publish(self, *chunks: Chunk) -> None:
        """Publishes committed chunks after all that were committed before."""
        self._unpublished += chunks
        if self._unpublished and (self._publisher is None or self._publisher.done()):
            self._publisher = asyncio.create_task(self._publish(), name="journal-publisher")

    async def _commit(self, entries: Sequence[Entry]) -> list[bool]:
        """Whether each entry was committed; a fenced one was not. Raises StoreUnavailable and Refused."""
        try:
            appended = await logs.append(self._db, entries)
        except StoreUnavailable:
            raise
        except Exception as error:
            raise Refused(error) from None
        committed = [entry.chunk.response_id in appended for entry in entries]
        self.publish(*[entry.chunk for entry in compress(entries, committed) if entry.is_followed])
        return committed

    async def _publish(self) -> None:
        while self._unpublished:
            chunks, self._unpublished = self._unpublished, []
            await self._pubsub.publish(chunks)


class _Lane:
    """Entries that are committed batch after batch. While Postgres is away or busy, the batch is repeated and grows."""

    def __init__(self, commit: Callable[[Sequence[Entry]], Awaitable[list[bool]]], max_weight: int) -> None:
        self._commit = commit
        self._patience: Patience | None = None
        """Set while Postgres takes nothing."""
        self.batches = Batcher(
            self._perform,
            max_items=max_weight,
            weight=lambda entry: weight(entry.size),
            shared_errors=(StoreUnavailable,),
            is_unclear=lambda error: isinstance(error, Refused) and error.is_bug,
            recover=self._recover,
        )

    async def _perform(self, entries: Sequence[Entry]) -> list[bool]:
        committed = await self._commit(entries)
        if self._patience is not None:
            log.info("Postgres is back")
            self._patience = None
        return committed

    async def _recover(self, error: Exception) -> None:
        """Returns when the batch may be repeated. Raises StoreBusy if it has been repeated for long enough."""
        trouble = error if isinstance(error, StoreUnavailable) else StoreBusy(str(error))
        if self._patience is None:
            self._patience = Patience()
            log.warning("Postgres is away or busy (%s); responses wait for their commit", trouble)
        try:
            await self._patience.wait(trouble)
        except StoreBusy:
            self._patience = None
            raise
