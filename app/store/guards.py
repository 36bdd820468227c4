"""Conditions that several statements about responses share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from app.protocol.status import TRANSITIONS, Status
from app.queue.message import FOREGROUND
from app.store.tables import responses

MAX_CLAIMS = 200
"""How often a response can be begun. Orderly hand-overs count as well, and yields do not: it ends what no worker can
end."""

IS_QUEUED = responses.c.status == Status.QUEUED.value
IS_IN_PROGRESS = responses.c.status == Status.IN_PROGRESS.value
RELEASED: Mapping[str, Any] = MappingProxyType(
    {
        "worker": None,
        "sent_at": None,
        "sends": 0,
        "yielded": False,
        "foreground_place": responses.c.priority.in_(FOREGROUND),
    }
)
"""What a release sets. Maintenance sends it to another worker (queue/redelivery.py)."""


def sources(transition: str) -> str:
    """The statuses that a transition starts from, for a statement in SQL: `'queued', ...`."""
    return ", ".join(sorted(f"'{status.value}'" for status in TRANSITIONS[transition].sources))


def has_crashed_out(crashes: Any, max_crashes: Any) -> Any:
    """Whether a response with so many crashes must be failed. For a number, or for a column in a statement."""
    return crashes >= max_crashes


def is_last_chance(crashes: Any, max_crashes: Any) -> Any:
    """Whether the next crash fails a response with so many crashes. For a number, or for a column in a statement."""
    return has_crashed_out(crashes + 1, max_crashes)


def is_suspect(crashes: Any, max_crashes: Any) -> Any:
    """Whether a response with so many crashes is a suspect. For a number, or for a column in a statement."""
    return (crashes > 0) & is_last_chance(crashes, max_crashes)
