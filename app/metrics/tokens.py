"""When an engine's tokens come."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from prometheus_client import Counter, Histogram


class TokenTimes:
    """When the tokens of one turn come."""

    __slots__ = ("_first", "_gaps", "_last", "_since_insert", "_tokens")

    def __init__(
        self, gaps: Histogram, tokens: Counter, first: Histogram | None, since_insert: Callable[[], float] | None
    ) -> None:
        self._gaps = gaps
        self._tokens = tokens
        self._first = first
        self._since_insert = since_insert
        self._last = 0.0

    def note(self, tokens: int) -> None:
        """The engine gave so many tokens."""
        if not tokens:
            return
        now = perf_counter()
        if self._last:
            self._gaps.observe((now - self._last) / tokens)
        elif self._first is not None and self._since_insert is not None:
            self._first.observe(self._since_insert())
        self._last = now
        self._tokens.inc(tokens)


class Untimed(TokenTimes):
    """Counts nothing: for a worker whose metrics nobody reads."""

    def __init__(self) -> None:
        pass

    def note(self, tokens: int) -> None:
        pass


UNTIMED = Untimed()
