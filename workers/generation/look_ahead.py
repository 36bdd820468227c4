"""How many responses a worker takes beyond its engine's slots, so that the engine never waits for the next one.

Between the end of a response and the next one in its slot lie a message, a claim and a prompt. The engine would lack
work meanwhile, although more is queued. So a worker takes as many more as will probably end within AHEAD_SECONDS.
They wait inside the engine, in the queue's order, with their prompts ready: the step that frees a slot fills it.

If few responses end, few are taken, so each waits about AHEAD_SECONDS, however long the responses are. A response is
therefore in progress only shortly before its first token. What stays queued is free for other workers, and more urgent
requests can still pass it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

AHEAD_SECONDS = 0.5
"""About how long a response waits in the engine: several times the way from the queue to the engine (0.1 s when 256
begin at once on two cores). Urgent requests wait longer by as much."""
WINDOW_SECONDS = 4.0
"""How long endings are remembered. Responses of one length end together, so a shorter memory has pauses between."""
_MEMORY = round(WINDOW_SECONDS / AHEAD_SECONDS)
"""Endings within the window for each response that is taken ahead."""


class LookAhead:
    """The look-ahead of one engine with so many slots: never more than there are slots."""

    def __init__(self, slots: int, clock: Callable[[], float] = monotonic) -> None:
        self._slots = slots
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=_MEMORY * slots)

    def note_end(self) -> None:
        """A response that generated has ended."""
        self._ends.append(self._clock())

    # From any thread

    def slots(self, limit: int) -> int:
        """How many responses generate at once, if the worker runs `limit` at most."""
        return min(limit, self._slots)

    def most(self, limit: int) -> int:
        """The most that `places` returns."""
        return limit if limit < self._slots else 2 * self._slots

    # On Celery's main thread

    def places(self, limit: int) -> int:
        """How many responses the worker may have now.

        `limit` is the most that it runs at once. A smaller one than the engine's slots leaves slots free on purpose:
        then there is no look-ahead.
        """
        return limit if limit < self._slots else self._slots + self._ahead()

    def _ahead(self) -> int:
        oldest = self._clock() - WINDOW_SECONDS
        while self._ends and self._ends[0] < oldest:
            self._ends.popleft()  # nobody else removes
        return -(-len(self._ends) // _MEMORY)
