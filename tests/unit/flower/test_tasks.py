"""From a response's row to Flower's task."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.flower.tasks import task_of
from app.queue.message import Priority
from app.store.operations.listing import ListedResponse

AT = datetime(2026, 11, 27, tzinfo=UTC)
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(ListedResponse.__dataclass_fields__),
    "id": "resp_1",
    "model": "demo",
    "project": "team-a",
    "priority": Priority.FLEX,
    "stream": True,
    "attempt": 0,
    "status": "queued",
    "sent_to": "w1",
    "sent_at": AT,
}
SENT = ListedResponse(**_FIELDS)
RUNS = replace(SENT, status="in_progress", attempt=2, worker="w1#2", started_at=AT)
ENDED = replace(RUNS, worker=None, finished_at=AT + timedelta(seconds=5))


@pytest.mark.parametrize(
    ("row", "shown", "state"),
    [
        (SENT, "PENDING", "PENDING"),
        (SENT, "RECEIVED", "RECEIVED"),
        (SENT, "STARTED", "RECEIVED"),
        (RUNS, "PENDING", "STARTED"),
        (RUNS, "SUCCESS", "STARTED"),
        (replace(RUNS, worker=None), "STARTED", "RETRY"),
        (replace(ENDED, status="completed"), "STARTED", "SUCCESS"),
        (replace(ENDED, status="incomplete"), "STARTED", "SUCCESS"),
        (replace(ENDED, status="failed"), "REVOKED", "FAILURE"),
        (replace(ENDED, status="cancelled"), "STARTED", "REVOKED"),
    ],
)
def test_each_row_has_its_state(row: ListedResponse, shown: str, state: str) -> None:
    assert task_of(row, shown)["state"] == state


@pytest.mark.parametrize(
    ("row", "attempt"), [(SENT, 1), (RUNS, 2), (replace(RUNS, worker=None), 3), (replace(ENDED, status="completed"), 2)]
)
def test_the_attempt_is_the_one_that_runs_or_that_is_to_come(row: ListedResponse, attempt: int) -> None:
    assert task_of(row, "PENDING")["args"] == f"flex, background, stream, attempt {attempt}"


def test_a_task_that_ended_has_its_times_and_its_error() -> None:
    error: dict[str, Any] = {"code": "server_error", "message": "it went wrong"}
    task = task_of(replace(ENDED, status="failed", error=error), "STARTED")
    assert (task["started"], task["failed"], task["runtime"]) == (AT.timestamp(), AT.timestamp() + 5, 5.0)
    assert task["exception"] == "ResponseFailed('server_error', 'it went wrong')"
    assert (task["worker"], task["kwargs"]) == ("w1", "{'project': 'team-a', 'model': 'demo'}")
