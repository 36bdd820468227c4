"""Queues in which responses wait, as far as this process has seen. What joins such a line needs no decision."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable

from app.queue.message import FOREGROUND

SEEN_SECONDS = 1.0
"""Seconds for which a process takes a line for granted. If it has gone meanwhile, a dispatch sends the response."""


class Lines:
    """When this process last saw somebody wait, by queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}

    def note(self, queues: Iterable[str], *, waits: bool) -> None:
        """Notes whether somebody waits in these queues."""
        for queue in queues:
            self._seen[queue] = self._clock() if waits else -math.inf

    def can_be_joined(self, arrivals: Collection[tuple[str, int]]) -> bool:
        """Whether all arrivals (queue, priority) come behind others, and none may pass them."""
        oldest = self._clock() - SEEN_SECONDS
        return all(
            priority not in FOREGROUND and self._seen.get(queue, -math.inf) >= oldest for queue, priority in arrivals
        )
