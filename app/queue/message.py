"""What a Celery message says of a response, and which messages a worker takes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Literal

TASK = "responses.generate"
"""The only task. Its argument is `response_id`; the task id is the response id, too."""
MESSAGE_COLUMNS = ("id", "model", "queue", "priority", "project", "stream", "attempt", "sent_to", "foreground_place")
"""The columns of a response that its message is made of."""


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
    sent_to: str | None = None
    """The node of the worker that is to claim it; None: nobody yet."""
    foreground_place: bool = False
    """Whether it takes one of the places that are kept for foreground responses."""

    @classmethod
    def of(cls, row: Any) -> Message:
        """The message of a response's row, which has at least the columns MESSAGE_COLUMNS."""
        owner = (row.project, row.stream, row.attempt + 1)
        return cls(row.id, row.model, row.queue, row.priority, *owner, row.sent_to, row.foreground_place)

    @property
    def list(self) -> str:
        """See `list_of`."""
        return list_of(self.queue, self.sent_to, Kind.FOREGROUND if self.foreground_place else Kind.ANSWERS)

    @property
    def shown_mode(self) -> str:
        """What Flower shows as args: tier, mode and attempt, like `flex, background, stream, attempt 1`."""
        stream = ["stream"] if self.stream else []
        return ", ".join([*class_of(self.priority), *stream, f"attempt {self.attempt}"])

    @property
    def shown_owner(self) -> str:
        """What Flower shows as kwargs: a Python dict, which Flower's search reads (`kwargs:project=team-a`)."""
        return repr({"project": self.project, "model": self.model})


Mode = Literal["foreground", "background", "window"]
"""Whether a client waits for a response; `window`: nobody does, and it has a deadline."""


class Priority(IntEnum):
    """The class of a response within its queue: its service tier, and whether a client waits for it.

    A class decides a flow's weight (`WEIGHTS`), so none starves.
    """

    PRIORITY_FOREGROUND = 1
    PRIORITY_BACKGROUND = 2
    FOREGROUND = 3
    BACKGROUND = 6
    FLEX_FOREGROUND = 8
    FLEX = 9
    WINDOW = 10
    """Work with a deadline: it fills what is idle, and rises as its time runs out (app/scheduling/windows.py)."""

    @classmethod
    def of(cls, tier: str, *, background: bool, in_window: bool = False) -> Priority:
        """The priority of a service tier: `default`, `flex` or `priority`. Work in a window has the tier `default`."""
        return cls.WINDOW if in_window else _TIERS[tier][background]


_TIERS = {
    "priority": (Priority.PRIORITY_FOREGROUND, Priority.PRIORITY_BACKGROUND),
    "default": (Priority.FOREGROUND, Priority.BACKGROUND),
    "flex": (Priority.FLEX_FOREGROUND, Priority.FLEX),
}

_MODES: tuple[Mode, Mode] = ("foreground", "background")

_CLASSES: Mapping[int, tuple[str, Mode]] = MappingProxyType(
    {
        Priority.WINDOW: ("default", "window"),
        **{
            priority: (tier, mode)
            for tier, priorities in _TIERS.items()
            for priority, mode in zip(priorities, _MODES, strict=True)
        },
    }
)


def class_of(priority: int) -> tuple[str, Mode]:
    """The service tier of a priority, and the mode."""
    return _CLASSES[priority]


def model_of(queue: str) -> str:
    """The name for a model that only its queue tells of: neither the models file nor a worker names it."""
    return queue.removeprefix("model.")


WEIGHTS: Mapping[int, float] = MappingProxyType(
    {
        Priority.PRIORITY_FOREGROUND: 16.0,
        Priority.PRIORITY_BACKGROUND: 8.0,
        Priority.FOREGROUND: 4.0,
        Priority.BACKGROUND: 2.0,
        Priority.FLEX_FOREGROUND: 0.25,
        Priority.FLEX: 0.125,
        Priority.WINDOW: 0.0625,
    }
)
"""The share of each class where several of a project wait. `flex` keeps 2 % beside a full `default`: 0.125 of 6.125.

What runs yields by these weights, too. Work in windows, which is in line by its deadlines, yields before all else."""

FOREGROUND = tuple(sorted(priority.value for pair in _TIERS.values() for priority in pair[:1]))
"""The priorities of responses that a client waits for."""

CLASSES = tuple(_CLASSES.values())
"""All pairs of a service tier and a mode that responses have."""


class Kind(StrEnum):
    """The kinds of lists in Redis, each by what its name ends with. No queue and no node has `#` in its name.

    Each kind has places of its own in a worker.
    """

    ANSWERS = ""
    FOREGROUND = "#foreground"
    """Answers for foreground places, ahead of all that wait in the list before."""


def kind_of(list_: str) -> Kind:
    _, hash_, name = list_.partition("#")
    return Kind(hash_ + name)


def list_of(queue: str, node: str | None, kind: Kind) -> str:
    """The list of Redis in which the worker with this node finds messages of a kind, first in, first out.

    The order was decided when messages were sent; lists are what must not wait for each other.
    """
    return f"{worker_list(queue, node)}{kind}"


def worker_list(queue: str, node: str | None) -> str:
    """The list of a worker's answers."""
    return f"{queue}@{node}"
