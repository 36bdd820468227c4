"""One response while it runs in this worker, how a later attempt continues behind its log, and the registry of runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from app.heavy import off_loop
from app.metrics.instruments import WorkerMetrics
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, size_of
from app.protocol.events.frames import Event
from app.protocol.events.machine import ResponseStream
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.database import Database, retry_until_available
from app.store.responses import logs
from app.store.rows import ResponseRow
from workers.generation.history import History

if TYPE_CHECKING:  # it imports the MCP library, which a response without hosted tools never loads
    from workers.mcp.toolbox import Toolbox


class Fenced(Exception):
    """The response belongs to this run no longer: it was cancelled, deleted, or claimed by another worker."""


@dataclass(slots=True)
class Run:
    """One attempt at one response, from its claim to its outcome."""

    row: ResponseRow
    task: asyncio.Task[object]
    stream: ResponseStream
    history: History = field(default_factory=History)
    """The turns that earlier attempts and this one have committed."""
    last_commit: asyncio.Future[bool] | None = None
    """The commit of the chunk that went to the journal last; False: the chunk was fenced."""
    toolbox: Toolbox | None = None
    """Sessions with MCP servers; they close after the run has ended."""
    used: int = 0
    """The tokens of its turns so far: their prompts, and what was generated."""
    held: int = 0
    """The tokens that it takes of the engine's cache, with some of those that it may still generate."""
    can_continue: bool = True
    """Whether the engine, or another attempt, can go on behind its tokens: else it neither pauses nor yields."""
    slot_at: float = 0.0
    """When it got its slot, by the monotonic clock."""
    progress_at: float | None = None
    """When something was committed for the first time since then."""
    yielding: bool = False
    """The worker took the run's slot for a foreground response."""
    commits: int = 0
    """How many of its chunks with tokens or steps were committed: its progress."""
    alone_until: float = 0.0
    """Until when it may have the engine alone (suspects.py), by the monotonic clock."""
    fenced: bool = False
    """The heartbeat found that the response belongs to another attempt."""
    claimed_at: float = field(default_factory=time.monotonic)
    """When it was claimed, by the monotonic clock."""

    @classmethod
    def of(cls, row: ResponseRow, task: asyncio.Task[object]) -> Run:
        return cls(row, task, ResponseStream({**row.as_object(), "status": Status.QUEUED.value}))

    @property
    def worker(self) -> str:
        """The worker id of the claim; every write names it."""
        assert self.row.worker is not None
        return self.row.worker

    @property
    def is_alone(self) -> bool:
        return time.monotonic() < self.alone_until

    def now(self) -> datetime:
        """The time by Postgres' clock, which retention goes by: that of the claim, and what has passed since."""
        return self.row.read_at + timedelta(seconds=self.seconds)

    @property
    def seconds(self) -> float:
        """Time since its claim."""
        return time.monotonic() - self.claimed_at

    def report(self, metrics: WorkerMetrics, outcome: str, *, goes_on: bool) -> None:
        """The attempt has ended, and the response with it unless it `goes_on`."""
        metrics.attempted(outcome, self.seconds)
        if not goes_on and self.row.started_at is not None:
            metrics.ended(outcome, (self.now() - self.row.started_at).total_seconds())

    def since_insert(self) -> float:
        """The seconds since its insert, by Postgres' clock."""
        return (self.now() - self.row.inserted_at).total_seconds()

    def fence(self) -> None:
        """Cancels the run's task, which then writes nothing more for this response.

        Takes back a chunk whose commit has not begun. If a crash of Postgres undid the claim, this worker may claim the
        response again under the same attempt: the chunks of two runs would meet in one commit, which Postgres refuses.
        """
        if not self.fenced:
            self.fenced = True
            if self.last_commit is not None:
                self.last_commit.cancel()
            self.task.cancel()

    def note_progress(self, commit: asyncio.Future[bool]) -> None:
        """A commit of tokens or steps has ended."""
        if not commit.cancelled() and commit.exception() is None and commit.result():
            self.commits += 1
            self.progress_at = time.monotonic() if self.progress_at is None else self.progress_at

    def yield_(self) -> None:
        """Cancels the run's task: the response is put back in line, and continues under its next attempt."""
        self.yielding = True
        self.task.cancel()

    def chunk(
        self,
        first: int,
        events: Sequence[Event],
        tokens: tuple[int, ...] = (),
        steps: tuple[Json, ...] = (),
        *,
        input_tokens: int = 0,
        cached_tokens: int = 0,
        final: bool,
    ) -> Chunk:
        """The chunk of these events, the first of which has sequence number `first`."""
        last = first + len(events) - 1
        return Chunk(
            self.row.id,
            first,
            last,
            self.row.attempt,
            tokens,
            frames.encode_all(events),
            final,
            steps,
            input_tokens,
            cached_tokens,
        )

    async def last_chunk_written(self) -> None:
        """Returns once the journal has written the last chunk, or was refused it.

        Whatever else ends the attempt waits for this: it must not meet the chunk in the journal, an error would take
        the chunk's sequence number, and a next attempt would append while the chunk is still open.
        """
        if self.last_commit is not None:
            await asyncio.wait([self.last_commit])

    async def restore(self, db: Database) -> None:
        """Continues the stream and the history behind the committed log.

        Raises Fenced unless it is in progress, and DamagedLog.
        """
        log = await retry_until_available(lambda: logs.read(db, self.row.id))
        if log.status is not Status.IN_PROGRESS:
            raise Fenced
        self.stream, self.history = await off_loop(partial(_folded, log.chunks), size_of(log.chunks))


def _folded(chunks: Sequence[Chunk]) -> tuple[ResponseStream, History]:
    """Raises DamagedLog."""
    events = (event for chunk in chunks for event in frames.decode(chunk.frames))
    return ResponseStream.restore(events, chunks[-1].last + 1 if chunks else None), History.of(chunks)


class ActiveRuns:
    """The runs of this worker, by response id. For the worker's loop; `attempts` and `claimed_now` also for the
    lease's thread."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._claims: Counter[str] = Counter()
        """Ids whose claim is under way, with the number of messages that ask for it."""
        self._lock = threading.Lock()

    def attempts(self) -> Mapping[str, int]:
        """Response id -> attempt. From any thread."""
        with self._lock:
            runs = self._runs.copy()
        return {response_id: run.row.attempt for response_id, run in runs.items()}

    def claimed_now(self) -> Set[str]:
        """The ids whose claim is under way: their rows may name this worker before their runs are here. Thread-safe."""
        with self._lock:
            return {*self._claims}

    @contextmanager
    def claiming(self, response_id: str) -> Iterator[None]:
        """Marks a claim in its block: its row may name this worker before its run is registered."""
        with self._lock:
            self._claims[response_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._claims[response_id] -= 1
                if not self._claims[response_id]:
                    del self._claims[response_id]

    def has(self, row: ResponseRow) -> bool:
        """Whether this attempt runs here already."""
        run = self._runs.get(row.id)
        return run is not None and run.row.attempt == row.attempt

    def fence(self, attempts: Mapping[str, int]) -> None:
        """Stops the runs of these responses (id -> attempt), which belong to this worker no longer."""
        for response_id, attempt in attempts.items():
            run = self._runs.get(response_id)
            if run is not None and run.row.attempt <= attempt:  # a later attempt may run here by now
                run.fence()

    @contextmanager
    def registered(self, run: Run) -> Iterator[None]:
        """Registers the run for the length of the block."""
        if (earlier := self._runs.get(run.row.id)) is not None:
            earlier.fence()  # this worker was taken for dead, and has claimed the response a second time
        with self._lock:
            self._runs[run.row.id] = run
        try:
            yield
        finally:
            with self._lock:
                if self._runs.get(run.row.id) is run:
                    del self._runs[run.row.id]
