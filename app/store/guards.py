"""Conditions and assignments that several statements about responses share."""

from __future__ import annotations

from enum import StrEnum

from app.protocol.status import TRANSITIONS
from app.queue.message import FOREGROUND

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


IS_FOREGROUND = f"{{0}}priority IN ({', '.join(str(int(each)) for each in sorted(FOREGROUND))})"
"""A client waits for it. The index of those that wait has the same condition (test_schema.py)."""
PUT_BACK = "sent_at = NULL, foreground_place = r.foreground_place AND r.status = 'in_progress' AND NOT r.yielded"
"""What becomes of a response that was sent and not claimed: it waits again."""
RELEASED = f"""
    worker = NULL, sent_at = NULL, sends = 0, yielded = false, foreground_place = {IS_FOREGROUND.format("r.")},
        history = handed_over(r, :how)"""
"""What becomes of a response whose worker has it no more: maintenance sends it to another one."""
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
    """The response gave its slot to a foreground one."""
    DRAINED = "drained"
    """The response's worker was told to stop."""
    CRASHED = "crashed"
    """The response's worker died."""
    STOPPED = "stopped"
    """The response's worker went with its Postgres, or left the response behind: that is no crash."""
    ENGINE_DIED = "engine_died"
    ENGINE_GAVE_UP = "engine_gave_up"
    STORE_TROUBLE = "store_trouble"
    """Postgres ended the same statement again and again."""
    CUT_OFF = "cut_off"
    """Something cancelled the attempt that had no business to."""
    ORPHANED = "orphaned"
    """The worker owned the response and did not run it."""
