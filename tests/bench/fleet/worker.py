"""A paper worker: a real lease and a real journal without an engine. Its streams advance in steps, as an engine's do.

The tokens that a stream gets during a commit become one event, as in vLLM's output collector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.aio import end_tasks
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.responses.logs import Entry
from app.streaming.pubsub import PubSub
from config.models import ServedModel
from tests.bench.fleet.model import WORKER_LANES
from tests.bench.fleet.rows import OPENED, SampleEvents
from tests.support.rows import claim
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.runs import ActiveRuns

LEASE_SECONDS = 30.0
POOL = 2
"""Connections of a worker's pool: one proves that it is there."""
CONNECTIONS = POOL + WORKER_LANES
"""That a worker may hold."""
WARM_RATE = 20.0
WARM_TOKENS = 8


@dataclass(slots=True)
class Counts:
    """Counts of some workers. `waits`: seconds from the append of each chunk to its commit."""

    commits: int = 0
    chunks: int = 0
    tokens: int = 0
    refused: int = 0
    waits: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.commits = self.chunks = self.tokens = self.refused = 0
        self.waits.clear()


def summed(found: Iterable[Counts]) -> Counts:
    whole = Counts()
    for each in found:
        whole.commits += each.commits
        whole.chunks += each.chunks
        whole.tokens += each.tokens
        whole.refused += each.refused
        whole.waits += each.waits
    return whole


@dataclass(frozen=True, slots=True)
class Squad:
    """The workers of one process (`python -m tests.bench.fleet`), and what they are to do."""

    ids: list[list[str]]
    """For each worker."""
    rate: float
    tokens: int


class CountingJournal(Journal):
    """Counts its transactions."""

    def __init__(self, db: Database, pubsub: PubSub, counts: Counts) -> None:
        super().__init__(db, pubsub)
        self._counts = counts

    async def _commit(self, entries: Sequence[Entry]) -> list[bool]:
        self._counts.commits += 1
        self._counts.chunks += len(entries)
        return await super()._commit(entries)


class Stream:
    """One response that runs here."""

    def __init__(self, response_id: str, attempt: int) -> None:
        self.id = response_id
        self.attempt = attempt
        self._next = OPENED
        self._given = 0
        self._has_tokens = asyncio.Event()

    def give(self) -> None:
        """A token."""
        self._given += 1
        self._has_tokens.set()

    async def run(
        self, tokens: int, lease: Lease, journal: Journal, events: SampleEvents, counts: Counts, *, ending: bool
    ) -> None:
        """Commits `tokens` tokens. With `ending` the last of them ends the response."""
        while tokens > 0:
            await self._has_tokens.wait()
            self._has_tokens.clear()
            given, self._given = self._given, 0
            tokens -= given
            counts.tokens += given
            begun = time.perf_counter()
            final = ending and tokens <= 0
            entry = events.entry(lease.worker, self.id, self._next, attempt=self.attempt, final=final)
            counts.refused += not await journal.append(entry)
            counts.waits.append(time.perf_counter() - begun)
            self._next += 1


class PaperRuns(ActiveRuns):
    """The registry of a paper worker: its streams."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        super().__init__()
        self._streams = streams

    def attempts(self) -> dict[str, int]:
        return {stream.id: stream.attempt for stream in self._streams}


class PaperWorker:
    """Claims responses and streams them."""

    def __init__(self, dsn: str, redis_url: str, model: ServedModel, pool: int) -> None:
        self.counts = Counts()
        self._db = Database(dsn, pool)
        self._pubsub = PubSub(redis_url, pubsub_key(self._db))
        self._journal = CountingJournal(self._db, self._pubsub, self.counts)
        self._streams: list[Stream] = []
        self._runs = PaperRuns(self._streams)
        self._events = SampleEvents()
        self._lease = Lease(self._db, model, LEASE_SECONDS, self._runs, 4096, lambda: 256)

    async def start(self, ids: Sequence[str], claims: Database) -> None:
        """Returns with its lease, and with these claimed by `claims`, for claims keep a connection of their own, and
        what is measured is not they. Raises ValueError where one cannot be had."""
        await self._lease.start()
        for response_id in ids:
            row = await claim(claims, response_id, self._lease.worker)
            if row is None:
                raise ValueError(f"{response_id} cannot be claimed")
            self._streams.append(Stream(response_id, row.attempt))
        # A new connection plans a statement anew the first few times, which a worker of hours does not notice.
        await self.run(WARM_RATE, WARM_TOKENS, ending=False)
        self.counts.clear()

    async def run(self, rate: float, tokens: int, late: float = 0.0, *, ending: bool = True) -> None:
        """Every stream says so many tokens, `rate` a second; `late` (seconds) keeps workers out of step."""
        steps = asyncio.create_task(self._step(rate, late))
        try:
            work = (
                stream.run(tokens, self._lease, self._journal, self._events, self.counts, ending=ending)
                for stream in self._streams
            )
            await asyncio.gather(*work)
        finally:
            await end_tasks(steps)

    async def stop(self) -> None:
        await self._journal.close()
        await self._lease.close()
        await self._pubsub.close()
        await self._db.close()

    async def _step(self, rate: float, late: float) -> None:
        await asyncio.sleep(late)
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for stream in self._streams:
                stream.give()
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
