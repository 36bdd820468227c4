"""Counts beside answers in a real `celery worker`: each kind has places of its own, and neither waits for the other."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from app.queue.message import Priority
from tests.support.celery_bench import Bench
from tests.support.celery_processes import Worker

PLACES = 4
"""What one project has."""
COUNTS = [f"hold-count-{number}" for number in range(PLACES + 6)]
ANSWERS = ["hold-1", "hold-2", "hold-3"]


def started(bench: Bench, ids: list[str]) -> list[str]:
    return [each for each in ids if f"start {each}" in bench.log]


@pytest.fixture
def full_of_counts(bench: Bench, start: Any) -> Worker:
    """A worker with three places for answers, whose places for counts are all taken while more counts wait."""
    worker: Worker = start(concurrency=3).ready()
    bench.send(*COUNTS, priority=Priority.COUNT)
    bench.wait_for_log(*(f"start {each}" for each in COUNTS[:PLACES]))
    return worker


def test_counts_that_hang_keep_no_answer_waiting(bench: Bench, full_of_counts: Worker) -> None:
    bench.send(*ANSWERS)
    bench.wait_for_log(*(f"start {each}" for each in ANSWERS))
    assert started(bench, COUNTS) == COUNTS[:PLACES]
    bench.cancel(COUNTS[0])
    bench.wait_for_log(f"revoked {COUNTS[0]}", f"start {COUNTS[PLACES]}")
    full_of_counts.send_signal(signal.SIGTERM)
    assert full_of_counts.wait() == 0
    assert bench.queued() >= len(COUNTS) - PLACES - 1, "those that waited in it returned"


def test_a_count_is_taken_by_any_worker_while_answers_have_every_place(bench: Bench, start: Any) -> None:
    start("other", concurrency=3).ready()
    bench.send(*ANSWERS, node="other")
    bench.wait_for_log(*(f"start {each}" for each in ANSWERS))
    bench.send("ok-count", priority=Priority.COUNT)
    bench.wait_for_log("end ok-count")


def test_a_project_whose_counts_hang_leaves_a_place_to_another(bench: Bench, full_of_counts: Worker) -> None:
    bench.send("ok-theirs", "ok-more", priority=Priority.COUNT, project="other")
    bench.wait_for_log("end ok-theirs", "end ok-more")
    assert started(bench, COUNTS) == COUNTS[:PLACES]
