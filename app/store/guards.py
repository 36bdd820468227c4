"""Conditions and assignments that several statements about responses share."""

from __future__ import annotations

from enum import StrEnum

from app.protocol.status import TRANSITIONS

MAX_CLAIMS = 200
"""How often a response can be begun, unless the last time brought progress. Orderly hand-overs count as well, and
yields do not: it ends what no worker can end."""


def sources(transition: str) -> str:
    """The statuses that a transition starts from, for a statement in SQL: `'queued', ...`."""
    return ", ".join(sorted(f"'{status.value}'" for status in TRANSITIONS[transition].sources))


MERGE_BYTES = 8192
"""From so many bytes on the log of an ended response is merged; a smaller one stays as it is (retention.py)."""
LOG_STATE = f"CASE WHEN {{0}} >= {MERGE_BYTES} THEN 'live' ELSE 'merged' END"
"""`log` of a response that ends with so many bytes of log."""

IS_SUSPECT = "{0}crashes > 0"
"""Crashed since it made progress: it runs alone first."""


OVERDUE = {
    deadline: f"{whose} AND r.{deadline} < now()"
    for deadline, whose in (
        ("queue_deadline", "r.status = 'queued'"),
        ("run_deadline", "r.status = 'in_progress'"),
        ("due_at", "r.finished_at IS NULL AND r.batch_id IS NULL"),
    )
}
"""By each deadline, what maintenance is to end for it. Lines of batches end with the windows of their batches."""


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
