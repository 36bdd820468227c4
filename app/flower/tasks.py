"""From a response's row to Flower's task: pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.protocol.response import code_of
from app.queue.message import TASK, Message
from app.store.operations.listing import ListedResponse

ENDS: Mapping[str, tuple[str, str]] = {
    "completed": ("SUCCESS", "succeeded"),
    "incomplete": ("SUCCESS", "succeeded"),
    "failed": ("FAILURE", "failed"),
    "cancelled": ("REVOKED", "revoked"),
}
"""By final status: the state of the task, and its field that has the time."""
FINAL = frozenset(state for state, _ in ENDS.values())
GONE: Mapping[str, Any] = {"state": "REVOKED"}
"""The task that Flower shows for a response whose row was deleted."""
_TAKEN = ("RECEIVED", "STARTED")


def task_of(row: ListedResponse, shown_state: str) -> dict[str, Any]:
    """The fields of the task, which was shown in this state before; `worker` is a name."""
    fields: dict[str, Any] = {"name": TASK, "state": state_of(row, shown_state), "worker": row.sent_to}
    claimed = row.worker is not None or row.finished_at is not None
    attempt = max(row.attempt, 1) if claimed else row.attempt + 1
    message = Message(row.id, row.model, "", row.priority, row.project, row.stream, attempt)
    fields |= {"args": message.shown_mode, "kwargs": message.shown_owner, "timestamp": _seconds(_last(row))}
    if row.started_at is not None:
        fields["started"] = _seconds(row.started_at)
    if row.finished_at is not None:
        fields[ENDS[row.status][1]] = _seconds(row.finished_at)
        if row.started_at is not None:
            fields["runtime"] = (row.finished_at - row.started_at).total_seconds()
    if row.error is not None:
        fields["exception"] = f"ResponseFailed({code_of(row.error)!r}, {row.error['message']!r})"
    return fields


def state_of(row: ListedResponse, shown_state: str) -> str:
    """`RETRY`: another attempt is to come, after a worker died, was stopped, or gave way to a foreground response."""
    if row.finished_at is not None:
        return ENDS[row.status][0]
    if row.worker is not None:
        return "STARTED"
    if row.attempt:
        return "RETRY"
    return "RECEIVED" if shown_state in _TAKEN else "PENDING"


def _last(row: ListedResponse) -> datetime | None:
    return row.finished_at or row.started_at or row.sent_at


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
