"""How the deltas of one response become its chunks in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.protocol.events.deltas import Finish
from app.protocol.events.frames import Event
from app.protocol.events.table import State
from app.protocol.types import Json
from app.store.responses.logs import Entry
from app.store.rows import Ending
from workers.formats.turn import NOTHING, Parsed
from workers.generation.outcome import Outcome
from workers.generation.run import Fenced, Run
from workers.generation.writing.flush_clock import FlushClock
from workers.generation.writing.journal import Journal

BEGIN_SECONDS = 0.1
"""How long readers wait, at most, to learn that a response is in progress: mostly its first token comes sooner, and
both are one chunk."""


class ChunkWriter:
    """Makes events of a response's deltas, and gives them to the journal in chunks.

    A chunk goes to the journal only after the commit of the one before. This is the back-pressure: meanwhile the engine
    merges what it generates into one delta.
    """

    def __init__(self, journal: Journal, run: Run, clock: FlushClock) -> None:
        self._journal = journal
        self._run = run
        self._clock = clock
        # The response is in progress from its first flush. A prompt that cannot be rendered fails before it, so that
        # a stream can still be answered with 400.
        self._events: list[Event] = run.stream.begin() if run.stream.state is State.QUEUED else []
        self._tokens: list[int] = []
        self._steps: list[Json] = []
        self._input_tokens = self._cached_tokens = 0

    async def write(self, parsed: Parsed) -> None:
        """Flushes `parsed`. Returns when the flush clock lets the engine be asked for more. Raises Fenced."""
        await self.flush(parsed)
        await self._clock.wait()

    def buffer(self, parsed: Parsed, *steps: Json) -> None:
        """Turns `parsed` into events of the next chunk."""
        events = [event for delta in parsed.deltas for event in self._run.stream.feed(delta)]
        # All at once: if a delta is refused, no events are left here without their tokens.
        self._events += events
        self._tokens += parsed.tokens
        self._steps += steps

    def count(self, input_tokens: int, cached_tokens: int) -> None:
        """The engine has a prompt of so many tokens, or knows how many were cached: the next chunk says so."""
        more_input, more_cached = self._run.history.count(input_tokens, cached_tokens)
        self._input_tokens += more_input
        self._cached_tokens += more_cached

    @property
    def seconds_per_flush(self) -> float:
        """The flush clock's interval now."""
        return self._clock.interval

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[None]:
        """Within it, the events so far wait for the next ones, for BEGIN_SECONDS at most."""
        timer = asyncio.get_running_loop().call_later(BEGIN_SECONDS, self._append_in_time)
        try:
            yield
        finally:
            timer.cancel()

    def _append_in_time(self) -> None:
        last = self._run.last_commit
        if not self._run.fenced and (last is None or last.done()):  # else the next flush does
            self._append()

    async def flush(self, parsed: Parsed = NOTHING, *steps: Json) -> None:
        """Gives the next chunk to the journal once the last one is committed. Raises Fenced."""
        self.buffer(parsed, *steps)
        await self._wait_for_commit()
        self._append()

    async def commit_all(self) -> None:
        """Flushes, and returns once everything with events is committed. Raises Fenced."""
        await self.flush()
        await self._wait_for_commit()

    async def finish(self, parsed: Parsed, finish: Finish, tool_results: Json | None = None) -> Outcome:
        """Commits the last chunk together with the final row. Raises Fenced."""
        stream = self._run.stream
        self.buffer(parsed)
        await self._wait_for_commit()
        finished_at = self._run.now()
        self._events += stream.finish(finish, int(finished_at.timestamp()))
        self._append(Ending.of(stream.response, finished_at, tool_results))
        await self._wait_for_commit()
        return Outcome(stream.response["status"])

    def _append(self, ending: Ending | None = None) -> None:
        """Tokens and steps without events (half a character) wait for the next events."""
        if not self._events:
            return
        run, final = self._run, ending is not None
        first = run.stream.next_sequence - len(self._events)
        chunk = run.chunk(
            first,
            self._events,
            tuple(self._tokens),
            tuple(self._steps),
            input_tokens=self._input_tokens,
            cached_tokens=self._cached_tokens,
            final=final,
        )
        row = run.row
        sent, kept = (row.conversation_input, row.request_to_keep) if final else (None, None)
        run.last_commit = self._journal.append(Entry(run.worker, chunk, ending, sent, kept, row.is_followed))
        if self._tokens or self._steps:
            run.last_commit.add_done_callback(run.note_progress)
        self._events, self._tokens, self._steps = [], [], []
        self._input_tokens = self._cached_tokens = 0

    async def _wait_for_commit(self) -> None:
        if (last := self._run.last_commit) is None:
            return
        # Shielded: a run that is cancelled here may still need to know the result (`tool_calls.py`).
        if not (last.result() if last.done() else await asyncio.shield(last)):
            raise Fenced
