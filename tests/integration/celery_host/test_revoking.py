"""Revokes and terminates, as the API, Flower and operators send them to real `celery worker` processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.celery_bench import Bench
from tests.support.celery_processes import Worker
from tests.support.waiting import until_sync


@pytest.mark.parametrize("terminate", [False, True])
def test_revoke_and_terminate_cancel_a_running_response_and_its_row(
    bench: Bench, worker: Worker, terminate: bool
) -> None:
    bench.send("hold-1", "raise-2", "until-3")
    bench.wait_for_log("start hold-1", "start raise-2", "start until-3")
    bench.celery.control.revoke(["hold-1", "raise-2"], terminate=terminate)
    bench.wait_for_log("revoked hold-1", "revoked raise-2")
    bench.wait_for_cancelled("hold-1", "raise-2")
    bench.redis.set("go", 1)
    bench.wait_for_log("end until-3")


def test_the_old_terminate_command_does_the_same(bench: Bench, worker: Worker) -> None:
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    bench.ask("terminate", signal="TERM", task_id="hold-1")
    bench.wait_for_log("revoked hold-1")
    bench.wait_for_cancelled("hold-1")


def test_a_queued_response_is_cancelled_before_any_worker_has_a_slot(bench: Bench, start: Any) -> None:
    start(concurrency=1).ready()
    bench.send("until-1", "ok-2")
    bench.wait_for_log("start until-1")
    bench.celery.control.revoke("ok-2")
    bench.wait_for_cancelled("ok-2")
    assert bench.queued() == 1
    bench.redis.set("go", 1)
    until_sync(lambda: bench.queued() == 0)
    bench.send("ok-3")
    bench.wait_for_log("end ok-3")
    assert "start ok-2" not in bench.log


def test_cancel_finds_the_original_after_its_duplicate_was_dropped(bench: Bench, worker: Worker) -> None:
    """Celery forgets a running id when a duplicate of it ends, and would reply `tasks unknown`."""
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    bench.send("hold-1")
    bench.wait_until_ended(2, active=1)
    bench.cancel("hold-1")
    bench.wait_for_log("revoked hold-1")
    assert not bench.ask("active")
    assert not bench.redis.smembers("cancelled"), "the API has cancelled the row before"


def test_revokes_that_race_with_the_start_of_responses_leave_nothing_running(bench: Bench, worker: Worker) -> None:
    ids = [f"hold-{n}" for n in range(120)]
    for n in range(0, len(ids), 6):
        bench.send(*ids[n : n + 6])
        bench.celery.control.revoke(ids[n : n + 6], terminate=True)
    bench.wait_for_cancelled(*ids)
    bench.send("ok-behind")
    bench.wait_for_log("end ok-behind")
    bench.wait_until_ended()
    assert bench.ask("active") == bench.ask("reserved") == []
    started = {line.split()[1] for line in bench.log if line.startswith("start hold")}
    revoked = {line.split()[1] for line in bench.log if line.startswith("revoked hold")}
    assert started <= revoked


def test_a_message_that_is_discarded_as_revoked_cancels_its_row(bench: Bench, worker: Worker) -> None:
    """The worker that received the revoke may have died before it wrote the row."""
    bench.celery.control.revoke("ok-discarded", terminate=True)
    bench.wait_for_cancelled("ok-discarded")
    bench.redis.delete("cancelled")
    bench.send("ok-discarded")
    bench.wait_for_cancelled("ok-discarded")
    assert "start ok-discarded" not in bench.log
    until_sync(lambda: bench.redis.sismember("discarded", "ok-discarded"))


def test_malformed_ids_in_a_revoke_do_no_harm(bench: Bench, worker: Worker) -> None:
    for malformed in ([], None, 7, ["", None, {}], "a\nb"):
        bench.ask("revoke", task_id=malformed, terminate=True, signal="NONSENSE")
    bench.send("ok-1")
    bench.wait_for_log("end ok-1")
    assert "Traceback" not in worker.text
