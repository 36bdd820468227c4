"""Conditions that several statements about responses share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from app.protocol.status import TRANSITIONS, Status
from app.queue.message import FOREGROUND
from app.store.tables import responses

MAX_CLAIMS = 200
"""How often a response can be begun, unless the last time brought progress. Orderly hand-overs count as well, and
yields do not: it ends what no worker can end."""

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


IS_SUSPECT = "{0}crashes > 0"
"""Crashed since it made progress: it runs alone first."""
HAS_PROGRESSED = """
    coalesce({0}attempt = (
        SELECT c.attempt FROM chunks c WHERE c.response_id = {0}id AND (length(c.tokens) > 0 OR c.steps IS NOT NULL)
        ORDER BY c.first DESC LIMIT 1
    ), false)"""
"""Whether tokens or steps were committed since the last claim."""
IS_SPENT = f"({{0}}attempt - {{0}}yields >= :max_claims AND NOT {HAS_PROGRESSED})"
"""Whether it was begun too often."""
