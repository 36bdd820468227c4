"""Counts beside answers in a real `celery worker`: each kind has places of its own, and neither waits for the other."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from app.queue.message import Priority
from tests.support.celery_bench import Bench
from tests.support.celery_processes import Worker
from tests.support.waiting import until_sync

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
    bench.send(*ANSWERS, "hold-4")
    bench.wait_for_log(*(f"start {each}" for each in ANSWERS))
    assert started(bench, COUNTS) == COUNTS[:PLACES]
    assert bench.queued() == 1


def test_a_count_is_taken_while_answers_have_every_place(bench: Bench, start: Any) -> None:
    start(concurrency=3).ready()
    bench.send(*ANSWERS)
    bench.wait_for_log(*(f"start {each}" for each in ANSWERS))
    bench.send("ok-count", priority=Priority.COUNT)
    bench.wait_for_log("end ok-count")


def test_a_count_that_ends_makes_room_for_the_next(bench: Bench, full_of_counts: Worker) -> None:
    bench.cancel(COUNTS[0])
    bench.wait_for_log(f"revoked {COUNTS[0]}", f"start {COUNTS[PLACES]}")


def test_the_places_of_counts_do_not_grow_with_the_pool(bench: Bench, full_of_counts: Worker) -> None:
    bench.send(*ANSWERS)
    bench.wait_for_log(*(f"start {each}" for each in ANSWERS))
    bench.ask("pool_grow", n=1)
    bench.send("hold-4")
    bench.wait_for_log("start hold-4")
    assert started(bench, COUNTS) == COUNTS[:PLACES]


def test_a_project_whose_counts_hang_leaves_a_place_to_another(bench: Bench, full_of_counts: Worker) -> None:
    bench.send("ok-theirs", "ok-more", priority=Priority.COUNT, project="other")
    bench.wait_for_log("end ok-theirs", "end ok-more")
    assert started(bench, COUNTS) == COUNTS[:PLACES]


def test_a_worker_that_stops_returns_the_counts_that_wait_in_it(bench: Bench, full_of_counts: Worker) -> None:
    full_of_counts.send_signal(signal.SIGTERM)
    assert full_of_counts.wait() == 0
    assert bench.queued() >= len(COUNTS) - PLACES


def test_a_worker_that_stops_takes_no_more_counts(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="1000").ready()
    bench.send("until-1", priority=Priority.COUNT)
    bench.wait_for_log("start until-1")
    worker.send_signal(signal.SIGTERM)
    until_sync(lambda: "stopping; running responses have 1000 s" in worker.text)
    bench.send("ok-2", "ok-3", priority=Priority.COUNT)
    bench.redis.set("go", 1)
    assert worker.wait() == 0
    assert "end until-1" in bench.log and started(bench, ["ok-2", "ok-3"]) == []
    assert bench.queued() == 2


def test_a_broken_connection_neither_repeats_running_counts_nor_frees_their_places(
    bench: Bench, worker: Worker
) -> None:
    ids = [f"until-{number}" for number in range(2 * PLACES)]
    bench.send(*ids, priority=Priority.COUNT)
    bench.wait_for_log(*(f"start {each}" for each in ids[:PLACES]))
    ready = worker.text.count("Connected to")
    bench.break_connections()
    until_sync(lambda: worker.text.count("Connected to") > ready)
    bench.send("ok-answer")
    bench.wait_for_log("end ok-answer")
    assert started(bench, ids) == ids[:PLACES]
    bench.redis.set("go", 1)
    bench.wait_for_log(*(f"end {each}" for each in ids))
    # A message that waited in the worker may come twice; the claim drops the second one, which the bench has not.
    assert [bench.log.count(f"start {each}") for each in ids[:PLACES]] == [1] * PLACES
