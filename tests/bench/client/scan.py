"""Reads an event stream without parsing it: counts frames and text deltas, and keeps the terminal event."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import orjson

DELTA = b".delta\n"
"""Ends the first line of a delta's frame; in the JSON behind it a line feed is escaped."""
EVENT = b"\ndata: {"
_TERMINAL = re.compile(rb"event: (?:response\.(?:completed|incomplete|failed|cancelled)|error)\ndata: ([^\n]*)")


class Scan:
    """One stream. Times are the clock's."""

    __slots__ = ("_clock", "_rest", "bytes", "deltas", "events", "first", "gaps", "last", "terminal")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._rest = b""
        self.bytes = self.events = self.deltas = 0
        self.first: float | None = None
        """When the first text came."""
        self.last: float | None = None
        self.gaps: list[float] = []
        self.terminal: bytes | None = None
        """The data of the terminal event."""

    def feed(self, piece: bytes) -> None:
        self.bytes += len(piece)
        data = self._rest + piece
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self._rest = data
            return
        self._rest, whole = data[end:], data[:end]
        self.events += whole.count(EVENT)
        if deltas := whole.count(DELTA):
            self._note(deltas)
        if found := _TERMINAL.search(whole):
            self.terminal = found[1]

    def _note(self, deltas: int) -> None:
        now = self._clock()
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now
        self.deltas += deltas

    def response(self) -> dict[str, Any]:
        """The response object of the terminal event. Raises ValueError if there is none, or if it is an error."""
        if self.terminal is None:
            raise ValueError("the stream ended without a terminal event")
        event: dict[str, Any] = orjson.loads(self.terminal)
        if "response" not in event:
            raise ValueError(f"the stream ended with {event}")
        response: dict[str, Any] = event["response"]
        return response
