"""One response while it runs here, and how what it says gets into the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.deltas import Finish
from app.protocol.events.frames import Event
from app.protocol.events.machine import ResponseStream
from app.protocol.status import Status
from app.store.journal import Entry
from app.store.rows import Ending, ResponseRow
from workers.formats.turn import Parsed
from workers.generation.history import History
from workers.generation.journal import Journal
from workers.generation.outcome import Outcome

if TYPE_CHECKING:
    from workers.mcp.toolbox import Toolbox

Json = dict[str, Any]

OUTCOMES = {
    Status.COMPLETED: Outcome.COMPLETED,
    Status.INCOMPLETE: Outcome.INCOMPLETE,
    Status.FAILED: Outcome.FAILED,
    Status.CANCELLED: Outcome.CANCELLED,
}


class Fenced(Exception):
    """The response is not ours any more: cancelled, taken over, or deleted."""


@dataclass(slots=True)
class Run:
    """One response while it runs here."""

    row: ResponseRow
    worker: str
    task: asyncio.Task[object]
    stream: ResponseStream
    history: History = field(default_factory=History)
    """What earlier attempts committed, and this one since."""
    pending: list[int] = field(default_factory=list)
    """Output tokens of this attempt that no chunk holds yet."""
    handed: asyncio.Future[bool] | None = None
    """The chunk that the journal has in hand, until the run has waited for it."""
    toolbox: Toolbox | None = None
    """Its sessions with tool servers, to be closed at its end."""
    lost: bool = False
    """The heartbeat found it to be another's."""

    def stop(self) -> None:
        """It is another's: its task ends, and writes nothing."""
        if not self.lost:
            self.lost = True
            self.task.cancel()


class Recorder:
    """What one run has to say, handed to the journal one chunk at a time.

    A chunk is handed over only once the one before is committed: that is the back-pressure by which
    the engine merges what it generates meanwhile into one delta.
    """

    def __init__(self, journal: Journal, run: Run, begun: list[Event]) -> None:
        self._journal = journal
        self._run = run
        self._events = begun
        """Not handed over yet: what cannot be rendered fails before it is in progress (a foreground stream: 400)."""
        self._steps: list[Json] = []

    def take(self, said: Parsed, *steps: Json) -> None:
        """Notes it for the next chunk."""
        for delta in said.deltas:
            self._events += self._run.stream.feed(delta)
        self._run.pending += said.tokens
        self._steps += steps

    async def add(self, said: Parsed, *steps: Json) -> None:
        """Raises Lost where the chunk before was refused."""
        self.take(said, *steps)
        await self._wait()
        self._hand_over()

    @property
    def free(self) -> bool:
        """Whether the chunk before is committed: one may follow without waiting."""
        handed = self._run.handed
        return handed is None or (
            handed.done() and not handed.cancelled() and not handed.exception() and handed.result()
        )

    def hand(self, said: Parsed) -> None:
        """`add` where it is `free`."""
        self.take(said)
        self._hand_over()

    async def begin(self) -> None:
        """Readers need not wait for the engine to know that it is in progress. Raises Lost."""
        await self.add(Parsed())

    async def settle(self) -> None:
        """Returns once all that has events is committed. Raises Lost."""
        await self._wait()
        self._hand_over()
        await self._wait()

    async def finish(self, said: Parsed, finish: Finish, tool_results: Json | None = None) -> Outcome:
        """The last chunk and the final row, in one commit."""
        stream = self._run.stream
        self.take(said)
        await self._wait()
        finished_at = datetime.now(UTC)
        self._events += stream.finish(finish, int(finished_at.timestamp()))
        self._hand_over(Ending.of(stream.response, finished_at, tool_results))
        await self._wait()
        return OUTCOMES[Status(stream.response["status"])]

    def _hand_over(self, ending: Ending | None = None) -> None:
        """Tokens and steps without events (half a character) wait for the events that come next."""
        if not self._events:
            return
        run = self._run
        first = run.stream.next_sequence - len(self._events)
        chunk = chunk_of(run, first, self._events, tuple(run.pending), tuple(self._steps), final=ending is not None)
        said = ending is not None and run.row.conversation_id is not None
        run.handed = self._journal.append(Entry(run.worker, chunk, ending, said))
        self._events, self._steps, run.pending = [], [], []

    async def _wait(self) -> None:
        if (handed := self._run.handed) is None:
            return
        # Shielded: who is cancelled while it waits may want to know all the same (`workers.generation.tool_calls`).
        if not (handed.result() if handed.done() else await asyncio.shield(handed)):
            raise Fenced


def chunk_of(
    run: Run,
    first: int,
    events: Sequence[Event],
    tokens: tuple[int, ...] = (),
    steps: tuple[Json, ...] = (),
    *,
    final: bool,
) -> Chunk:
    """Some events of a run, the first of which has number `first`."""
    last = first + len(events) - 1
    return Chunk(run.row.id, first, last, run.row.attempt, tokens, frames.encode_all(events), final, steps)
