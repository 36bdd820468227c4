"""How many of a worker's responses ended of late."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from time import monotonic

MAX_ENDINGS = 4096
"""The most endings that are remembered; they take 128 KiB."""


class Pace:
    """Remembers when responses ended. To be asked from any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._endings: deque[float] = deque(maxlen=MAX_ENDINGS)

    def note_end(self) -> None:
        """A response that generated has ended."""
        self._endings.append(self._clock())

    def ended_within(self, seconds: float) -> int:
        """How many responses ended in the last `seconds`."""
        endings = list(self._endings)  # one step for other threads
        return len(endings) - bisect_left(endings, self._clock() - seconds)
