"""Conditions and assignments that several statements about responses share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
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

DUE_RANK = "CAST(1000000 * extract(epoch FROM {0}) AS bigint)"
"""The rank of work that is due then, in its flow: microseconds."""
MAX_HISTORY = 64
"""Hand-overs that a row notes. The oldest go: numbers of attempts show that some are missing."""


class HandOver(StrEnum):
    """Why an attempt handed its response over."""

    YIELDED = "yielded"
    """To a foreground response, for its slot."""
    DRAINED = "drained"
    """Its worker was told to stop."""
    CRASHED = "crashed"
    """Its worker died."""
    STOPPED = "stopped"
    """Its worker went with its Postgres, or left the response behind: that is no crash."""
    ENGINE_DIED = "engine_died"
    ENGINE_GAVE_UP = "engine_gave_up"
    STORE_TROUBLE = "store_trouble"
    """Postgres ended the same statement again and again."""
    CUT_OFF = "cut_off"
    """Something cancelled the attempt that had no business to."""
    ORPHANED = "orphaned"
    """The worker owned the response and did not run it."""


# Its worker is named by the node, which outlives a lease.
HISTORY = f"""
    CASE WHEN jsonb_array_length(responses.history) >= {MAX_HISTORY} THEN responses.history - 0
        ELSE coalesce(responses.history, CAST('[]' AS jsonb)) END
    || jsonb_build_object('attempt', responses.attempt, 'worker', responses.sent_to,
        'from', responses.claimed_at, 'to', now(), 'how', CAST(:how AS text))"""
"""What an attempt that hands its response over sets `history` to, with the value of a HandOver as `how`."""
