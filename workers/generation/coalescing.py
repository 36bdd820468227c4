"""How often a response says something, and in how many events: their granularity."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from workers.engine.base import EngineDelta
from workers.formats.chat.parser import merge_deltas
from workers.formats.turn import Parsed, TurnParser
from workers.generation.flush_clock import FlushClock
from workers.generation.recorder import Recorder

_NOTHING = Parsed()


@dataclass(frozen=True, slots=True)
class Granularity:
    """Of the events of a worker's responses."""

    interval: float = 0.0
    """Seconds between two chunks of one response, at least."""
    per_second: float = 0.0
    """Chunks of all responses together, at most (workers/generation/flush_clock.py); 0: no bound."""
    per_token: bool = False
    """Each token is an event, however many a chunk has; else those of a kind are one."""


NOTHING_HELD_BACK = Granularity()


class Coalescer:
    """Lets what the model says through at most every `seconds` (0: at once); what came meanwhile goes as one chunk.

    The first token does not wait, and neither does the end: who ends a turn takes the `rest` with it. What is let
    through goes by the worker's `beat`.
    """

    def __init__(self, record: Recorder, seconds: float, beat: FlushClock, *, per_token: bool = False) -> None:
        self._record = record
        self._beat = beat
        self._seconds = seconds
        self._per_token = per_token
        self._held = _NOTHING
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def read(self, parser: TurnParser, delta: EngineDelta) -> Parsed:
        """What the engine's delta says, in as many deltas as there will be events of it."""
        if not self._per_token:
            return parser.feed(delta.token_ids, delta.logprobs)
        said = _NOTHING
        for place, token in enumerate(delta.token_ids):
            if parser.ended:
                break
            said += parser.feed((token,), delta.logprobs[place : place + 1])
        return said

    async def say(self, said: Parsed) -> None:
        """Records it, now or when its time has come; returns when the engine may be asked for more. Raises Lost."""
        if not self._seconds:
            await self._record.add(said)
        else:
            await self._hold(said)
        await self._beat.wait()

    async def _hold(self, said: Parsed) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._due:
            self._held += said
            self._timer = self._timer or loop.call_at(self._due, self._on_time)
        else:
            await self._record.add(self.rest(said))
            self._due = loop.time() + self._seconds

    def rest(self, said: Parsed = _NOTHING) -> Parsed:
        """What waited, and `said` behind it."""
        self.close()
        if not self._held.tokens and not self._held.deltas:
            return said
        both, self._held = self._held + said, _NOTHING
        return both if self._per_token else Parsed(merge_deltas(both.deltas), both.tokens)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        """The model pauses. Where the chunk before is not committed yet, this one has its turn an interval later."""
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._record.free:
            self._record.hand(self.rest())
            self._due = loop.time() + self._seconds
        else:
            self._timer = loop.call_later(self._seconds, self._on_time)
