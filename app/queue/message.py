"""What a Celery message says of a response, and which messages a worker takes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

TASK = "responses.generate"
"""The only task. Its argument is `response_id`; the task id is the response id, too."""


@dataclass(frozen=True, slots=True)
class Message:
    """The response that a worker is to look at, its queue and priority, and what operators see of it."""

    response_id: str
    model: str
    queue: str
    priority: int
    project: str = "default"
    stream: bool = False
    attempt: int = 1
    """The attempt that begins with the claim that this message leads to."""

    @property
    def list(self) -> int:
        """See `list_of`."""
        return list_of(self.priority)

    @property
    def shown_mode(self) -> str:
        """What Flower shows as args: tier, mode and attempt, like `flex, background, stream, attempt 1`."""
        tier, background = _CLASSES.get(self.priority, ("urgent", False))
        mode = ["background" if background else "foreground", *(["stream"] if self.stream else [])]
        return ", ".join([tier, *mode, f"attempt {self.attempt}"])

    @property
    def shown_owner(self) -> str:
        """What Flower shows as kwargs: a Python dict, which Flower's search reads (`kwargs:project=team-a`)."""
        return repr({"project": self.project, "model": self.model})


class Priority(IntEnum):
    """The class of a response within its queue: its service tier, and whether a client waits for it.

    A class decides a flow's weight (`WEIGHTS`), so none starves. Only urgent messages pass all others.
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

_CLASSES: Mapping[int, tuple[str, bool]] = MappingProxyType(
    {priority: (tier, bool(n)) for tier, priorities in _TIERS.items() for n, priority in enumerate(priorities)}
)
"""The service tier of a priority, and whether it is one of background responses."""

WEIGHTS: Mapping[int, float] = MappingProxyType(
    {
        Priority.URGENT: 16.0,  # it never waits for a dispatch
        Priority.PRIORITY_FOREGROUND: 16.0,
        Priority.PRIORITY_BACKGROUND: 8.0,
        Priority.FOREGROUND: 4.0,
        Priority.BACKGROUND: 2.0,
        Priority.FLEX_FOREGROUND: 0.25,
        Priority.FLEX: 0.125,
    }
)
"""The share of each class where several of a project wait. `flex` keeps 2 % beside a full `default`: 0.125 of 6.125."""

LISTS = (Priority.URGENT, Priority.FOREGROUND)
"""The lists of a queue in Redis."""


def list_of(priority: int) -> int:
    """The list, named by a priority, in which messages of this priority wait, first in, first out.

    All that is not urgent shares one, because the order was decided when the messages were sent.
    """
    return Priority.URGENT if priority == Priority.URGENT else Priority.FOREGROUND
