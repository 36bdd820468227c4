"""What a Celery message says of a response, and which messages a worker takes first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

TASK = "responses.generate"
"""The only task. Its arguments are `response_id` and `model` (for operators); the task id is the response id."""


@dataclass(frozen=True, slots=True)
class Message:
    """The response that a worker is to look at, and the queue and priority of the message."""

    response_id: str
    model: str
    queue: str
    priority: int


class Priority(IntEnum):
    """The order within a queue: workers take 0 first. The order is strict, so a low priority may starve.

    The service tier decides. Within a tier, responses whose client waits go first.
    """

    URGENT = 0
    """Short work of the server itself: counting tokens."""
    PRIORITY_FOREGROUND = 1
    PRIORITY_BACKGROUND = 2
    FOREGROUND = 3
    BACKGROUND = 6
    FLEX_FOREGROUND = 8
    FLEX = 9

    @classmethod
    def of(cls, tier: str, *, background: bool) -> Priority:
        """The priority of a service tier: `default`, `flex` or `priority`."""
        return _TIERS[tier][background]


_TIERS = {
    "priority": (Priority.PRIORITY_FOREGROUND, Priority.PRIORITY_BACKGROUND),
    "default": (Priority.FOREGROUND, Priority.BACKGROUND),
    "flex": (Priority.FLEX_FOREGROUND, Priority.FLEX),
}
