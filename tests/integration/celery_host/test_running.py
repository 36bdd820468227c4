"""Responses in a real `celery worker` with our pool; only the runner pretends."""

from __future__ import annotations

from typing import Any

from app.queue.message import Priority, worker_list
from tests.support.celery_bench import Bench
from tests.support.celery_processes import QUEUE, Worker
from tests.support.queue_app import SECRET
from tests.support.waiting import until_sync
from workers.celery_host import remote_control


def test_64_responses_run_at_once_and_one_revoke_ends_them_all(bench: Bench, worker: Worker) -> None:
    ids = [f"hold-{n}" for n in range(64)]
    bench.send(*ids, "ok-late")
    bench.wait_for_log(*(f"start {i}" for i in ids))
    assert "start ok-late" not in bench.log
    assert bench.queued() == 1
    bench.cancel(*ids)
    bench.wait_for_log(*(f"revoked {i}" for i in ids), "end ok-late")


def test_a_worker_takes_no_more_than_it_has_places_for_and_nothing_that_was_sent_to_another(
    bench: Bench, start: Any
) -> None:
    bench.send("ok-nowhere", node="nowhere")
    bench.broker.rename(worker_list(QUEUE, "nowhere"), QUEUE)  # the list that Celery was told to consume from
    ids = [f"hold-{n}" for n in range(10)]
    bench.send(*ids)
    start(concurrency=3).ready()
    bench.wait_for_log(*(f"start {i}" for i in ids[:3]))
    start("other", concurrency=7).ready()
    bench.send("hold-other", node="other")
    bench.wait_for_log("start hold-other")
    for _ in range(2):
        assert bench.active(workers=2) == [1, 3]
    assert (bench.queued(), bench.broker.llen(QUEUE)) == (8, 1)


def test_a_foreground_place_is_taken_while_answers_have_every_other(bench: Bench, start: Any) -> None:
    ids = [f"hold-{n}" for n in range(8)]
    bench.send(*ids, "ok-behind")
    start(concurrency=8, PRETEND_SLOTS="4").ready()
    bench.wait_for_log(*(f"start {i}" for i in ids))
    bench.send("ok-foreground", foreground_place=True)
    bench.wait_for_log("end ok-foreground")
    assert "start ok-behind" not in bench.log


def test_answers_are_taken_in_the_order_in_which_they_were_sent(bench: Bench, start: Any) -> None:
    sent = list(reversed(Priority))
    for priority in sent:
        bench.send(f"ok-{priority.name}", priority=priority)
    start(concurrency=1).ready()
    bench.wait_for_log("end ok-PRIORITY_FOREGROUND")
    started = [line for line in bench.log if line.startswith("start")]
    assert started == [f"start ok-{priority.name}" for priority in sent]


# Memory


def test_a_worker_remembers_the_latest_revoked_ids(bench: Bench, worker: Worker) -> None:
    ids = [f"gone-{n}" for n in range(remote_control.REVOKED_KEPT + 100)]
    bench.cancel(*ids[:100])
    until_sync(lambda: len(bench.ask("revoked")) == 100)
    bench.cancel(*ids[100:])
    until_sync(lambda: set(bench.ask("revoked")) == set(ids[100:]))


# Logs


def test_no_text_that_may_hold_a_prompt_reaches_the_log_and_no_failure_has_a_traceback(
    bench: Bench, worker: Worker
) -> None:
    bench.send("fail-1", "bug-1", "gone-1", "fenced-1", "dup-1", "short-1")
    bench.wait_until_ended(6)
    assert "the response went wrong: ValueError at queue_app.py:" in worker.text
    assert "response_id=bug-1" in worker.text
    assert SECRET not in worker.text
    assert "Traceback" not in worker.text
    assert "Failed to mark task" not in worker.text
