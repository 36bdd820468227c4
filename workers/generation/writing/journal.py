"""Group commit: the chunks of all running responses go to Postgres in one statement, then to readers.

There is no timer: an idle journal commits the next chunk at once, and under load commits grow larger, not more
frequent (`app/batching.py`). Chunks are published after their commit, in the order of commits, beside the next commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import compress
from time import monotonic
from weakref import WeakValueDictionary

from app.aio import end_tasks
from app.batching import Batcher
from app.metrics.instruments import WorkerMetrics
from app.protocol.events.chunk import Chunk
from app.protocol.text import type_and_places
from app.sizes import is_large, weight
from app.store.database import RETRY_SECONDS, Database, Patience, StoreBusy, StoreLocked, StoreUnavailable
from app.store.responses import logs
from app.store.responses.logs import Entry, ItemTaken
from app.store.trouble import Trouble, trouble_of
from app.streaming.pubsub import PubSub
from config.logging.context import of_nobody

log = logging.getLogger("longhaul.journal")

CLOSE_SECONDS = 2.0
END_SECONDS = 0.02
"""How long the end of a response that nobody may follow waits for others: they are published together. Each message of
its own costs the worker and Redis a round trip for clients that have waited for longer anyway."""
MAX_BATCH = 512
"""Entries of one commit; one of some size counts as several (`app.sizes.weight`)."""
TRIES = 5
"""How often an entry that Postgres does not take is tried, every RETRY_SECONDS, while it takes others."""
PATIENT_TRIES = 600
"""The same while it takes no others either, or while others hold the entry's conversation."""


class Refused(Exception):
    """Postgres, or its driver, does not take an entry. The text has no value of it: it goes to the log."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type_and_places(error))
        self.is_bug = trouble_of(error) is Trouble.BUG
        """Whether the entry may be right: Postgres refuses everything, for instance, or its disk is damaged."""


class Journal:
    """Commits the chunks of all responses of a worker in one statement, and publishes those that may have readers.

    Large entries are committed one by one beside the others, which do not wait for them. Ends in conversations, which
    others may hold, have commits of their own as well.
    """

    def __init__(self, db: Database, pubsub: PubSub, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._db = db
        self._pubsub = pubsub
        self._small = _Lane(self._commit, MAX_BATCH, self._again)
        self._conversations = _Lane(self._commit, MAX_BATCH, self._again)
        self._large = _Lane(self._commit, 1, self._again)
        self._committed_at = 0.0
        """When Postgres took something last, by the loop's clock."""
        self._open: WeakValueDictionary[str, asyncio.Future[bool]] = WeakValueDictionary()
        """The commit of each response's last entry, as long as anybody waits for it."""
        self._unpublished: list[Chunk] = []
        self._unpublished_since = 0.0
        """When the oldest of them was committed, by the monotonic clock."""
        self._publisher: asyncio.Task[None] | None = None
        self._ends: list[Chunk] = []
        """Ends of responses that nobody may follow, not yet published."""
        self._ends_due: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Cancels the commits that wait, and publishes what was committed, for CLOSE_SECONDS: readers poll Postgres."""
        for lane in (self._small, self._conversations, self._large):
            await lane.batches.close()
        self._publish_ends()
        if self._publisher is not None:
            await asyncio.wait([self._publisher], timeout=CLOSE_SECONDS)
            await end_tasks(self._publisher)

    def append(self, entry: Entry) -> asyncio.Future[bool]:
        """The future of the entry's commit. False: it was fenced, the response is not this worker's any more.

        While Postgres is away the future waits. An entry that Postgres does not take gets Refused, or ItemTaken; the
        others do not. If Postgres ends all commits again and again, their entries get StoreBusy. Raises RuntimeError
        if the response has an open entry: Postgres would refuse a statement with two.
        """
        response_id = entry.chunk.response_id
        if (last := self._open.get(response_id)) is not None and not last.done():
            raise RuntimeError(f"{response_id} has an open entry in the journal")
        small = self._small if entry.conversation_input is None else self._conversations
        lane = self._large if is_large(entry.size) else small
        commit = self._open[response_id] = lane.batches.submit(entry)
        return commit

    def publish(self, *chunks: Chunk) -> None:
        """Publishes committed chunks after all that were committed before."""
        if not self._unpublished:
            self._unpublished_since = monotonic()
        self._unpublished += chunks
        if self._unpublished and (self._publisher is None or self._publisher.done()):
            self._publisher = asyncio.create_task(self._publish(), name="journal-publisher", context=of_nobody())

    async def _commit(self, entries: Sequence[Entry]) -> list[bool]:
        """Whether each entry was committed; a fenced one was not. Raises StoreUnavailable, ItemTaken and Refused."""
        try:
            with self._metrics.commit(len(entries)):
                appended = await logs.append(self._db, entries)
        except (StoreUnavailable, ItemTaken):
            raise
        except Exception as error:
            raise Refused(error) from None
        self._committed_at = asyncio.get_running_loop().time()
        committed = [entry.chunk.response_id in appended for entry in entries]
        made = list(compress(entries, committed))
        self.publish(*[entry.chunk for entry in made if entry.is_followed])
        self._publish_ends_soon([entry.chunk for entry in made if entry.chunk.final and not entry.is_followed])
        return committed

    def _publish_ends_soon(self, ends: Iterable[Chunk]) -> None:
        """Publishes, a little later, ends of responses that nobody may follow: readers find them in Postgres, too."""
        self._ends += (replace(chunk, frames=b"") for chunk in ends)
        if self._ends and self._ends_due is None:
            self._ends_due = asyncio.get_running_loop().call_later(END_SECONDS, self._publish_ends)

    def _publish_ends(self) -> None:
        if self._ends_due is not None:
            self._ends_due.cancel()
        ends, self._ends, self._ends_due = self._ends, [], None
        self.publish(*ends)

    def _again(self, error: Exception, failures: int) -> float | None:
        """After how many seconds an entry that has failed alone so often is tried again; None: it is at fault."""
        most = PATIENT_TRIES if isinstance(error, StoreLocked) else 0
        if isinstance(error, Refused) and error.is_bug:
            first_failed_at = asyncio.get_running_loop().time() - failures * RETRY_SECONDS
            most = TRIES if self._committed_at > first_failed_at else PATIENT_TRIES
            if failures == 1:
                log.warning("Postgres does not take an entry, which is tried again: %s", error)
        return RETRY_SECONDS if failures < most else None

    async def _publish(self) -> None:
        while self._unpublished:
            chunks, since, self._unpublished = self._unpublished, self._unpublished_since, []
            if await self._pubsub.publish(chunks):
                self._metrics.published(monotonic() - since)


class _Lane:
    """Entries that are committed batch after batch. While Postgres is away or busy, the batch is repeated and grows."""

    def __init__(
        self,
        commit: Callable[[Sequence[Entry]], Awaitable[list[bool]]],
        max_weight: int,
        again: Callable[[Exception, int], float | None],
    ) -> None:
        self._commit = commit
        self._patience: Patience | None = None
        """Set while Postgres takes nothing."""
        self.batches = Batcher(
            self._perform,
            max_items=max_weight,
            weight=lambda entry: weight(entry.size),
            shared_errors=(StoreUnavailable,),
            again=again,
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
        assert isinstance(error, StoreUnavailable)
        if self._patience is None:
            self._patience = Patience()
            log.warning("Postgres is away or busy (%s); responses wait for their commit", error)
        try:
            await self._patience.wait(error)
        except StoreBusy:
            self._patience = None
            raise
