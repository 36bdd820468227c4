"""From the deltas of one response to its chunks in the journal."""

from __future__ import annotations

import asyncio

from app.protocol.events.deltas import Finish
from app.protocol.events.frames import Event
from app.protocol.events.table import State
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.responses.logs import Entry
from app.store.rows import Ending
from workers.engine.base import EngineDelta
from workers.formats.turn import Parsed, TurnParser
from workers.generation import coalescing
from workers.generation.coalescing import NOTHING, Granularity
from workers.generation.flush_clock import FlushClock
from workers.generation.journal import Journal
from workers.generation.outcome import OUTCOME_BY_STATUS, Outcome
from workers.generation.run import Fenced, Run


class ChunkWriter:
    """Buffers a response's deltas into its next chunk, and flushes it when interval, flush clock and last commit allow.

    A chunk goes to the journal only after the commit of the one before. This is the back-pressure: meanwhile the engine
    merges what it generates into one delta.
    """

    def __init__(self, journal: Journal, run: Run, clock: FlushClock, granularity: Granularity) -> None:
        self._journal = journal
        self._run = run
        self._clock = clock
        self._interval = granularity.interval
        self._per_token = granularity.per_token
        self.tokens_per_delta = granularity.tokens_per_delta
        self._held: list[Parsed] = []
        """Waits for the interval; its deltas are merged before they become events."""
        # In progress only with the first flush: a prompt that cannot be rendered fails before (a stream then gets 400).
        self._events: list[Event] = run.stream.begin() if run.stream.state is State.QUEUED else []
        self._tokens: list[int] = []
        self._steps: list[Json] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def parse(self, parser: TurnParser, delta: EngineDelta) -> Parsed:
        """Parses the engine's delta into as many deltas as there will be events."""
        return coalescing.parse(parser, delta, per_token=self._per_token)

    async def write(self, parsed: Parsed) -> None:
        """Flushes `parsed`, or holds it until the interval is over. Returns when the engine may be asked for more.

        The first write of a response is flushed at once. Raises Fenced.
        """
        if not self._interval:
            await self.flush(parsed)
        elif (loop := asyncio.get_running_loop()).time() < self._due:
            if parsed.tokens or parsed.deltas:
                self._held.append(parsed)
            self._timer = self._timer or loop.call_at(self._due, self._on_timer)
        else:
            await self.flush(parsed)
            self._due = loop.time() + self._interval
        await self._clock.wait()

    def buffer(self, parsed: Parsed, *steps: Json) -> None:
        """Turns `parsed`, and what is held, into events of the next chunk."""
        if self._held:
            parsed = self._take_held(parsed)
        events = [event for delta in parsed.deltas for event in self._run.stream.feed(delta)]
        # All at once: if a delta is refused, no events are left here without their tokens.
        self._events += events
        self._tokens += parsed.tokens
        self._steps += steps

    async def flush(self, parsed: Parsed = NOTHING, *steps: Json) -> None:
        """Gives the next chunk to the journal once the last one is committed. Raises Fenced."""
        self.buffer(parsed, *steps)
        await self._wait_for_commit()
        self._append()

    def flush_nowait(self) -> bool:
        """Flushes if the last chunk is committed; else returns False."""
        last = self._run.last_commit
        if last is not None and not (last.done() and not last.cancelled() and not last.exception() and last.result()):
            return False
        self.buffer(NOTHING)
        self._append()
        return True

    async def drain(self) -> None:
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
        return OUTCOME_BY_STATUS[Status(stream.response["status"])]

    def close(self) -> None:
        """Stops the timer: what is still held is dropped."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_held(self, parsed: Parsed) -> Parsed:
        self.close()
        held, self._held = self._held, []
        return coalescing.coalesce([*held, parsed], per_token=self._per_token)

    def _on_timer(self) -> None:
        """Flushes while the model pauses. If the last chunk is not committed yet, tries again an interval later."""
        loop = asyncio.get_running_loop()
        self._timer = None
        try:
            flushed = self.flush_nowait()
        except Exception as error:
            self._run.last_commit = _failed(error)  # the run waits for it before its next chunk, and fails
            return
        if flushed:
            self._due = loop.time() + self._interval
        else:
            self._timer = loop.call_later(self._interval, self._on_timer)

    def _append(self, ending: Ending | None = None) -> None:
        """Tokens and steps without events (half a character) wait for the next events."""
        if not self._events:
            return
        run, final = self._run, ending is not None
        first = run.stream.next_sequence - len(self._events)
        chunk = run.chunk(first, self._events, tuple(self._tokens), tuple(self._steps), final=final)
        row = run.row
        sent, kept = (row.conversation_input, row.request_to_keep) if final else (None, None)
        run.last_commit = self._journal.append(Entry(run.worker, chunk, ending, sent, kept))
        self._events, self._tokens, self._steps = [], [], []

    async def _wait_for_commit(self) -> None:
        if (last := self._run.last_commit) is None:
            return
        # Shielded: a run that is cancelled here may still need to know the result (`tool_calls.py`).
        if not (last.result() if last.done() else await asyncio.shield(last)):
            raise Fenced


def _failed(error: Exception) -> asyncio.Future[bool]:
    failed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    failed.exception()  # if the run is fenced, nobody asks for it, and asyncio would complain
    return failed
