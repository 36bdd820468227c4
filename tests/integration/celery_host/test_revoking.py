"""Revokes, as the API and Flower send them to real `celery worker` processes, and commands that nobody signed."""

from __future__ import annotations

from typing import Any

from app.queue.commands import Command
from tests.support.celery_bench import Bench
from tests.support.celery_processes import Worker
from tests.support.waiting import until_sync


def test_a_revoke_ends_running_responses_and_no_others(bench: Bench, worker: Worker) -> None:
    bench.send("hold-1", "raise-2", "until-3")
    bench.wait_for_log("start hold-1", "start raise-2", "start until-3")
    bench.cancel("hold-1", "raise-2")
    bench.wait_for_log("revoked hold-1", "revoked raise-2")
    bench.redis.set("go", 1)
    bench.wait_for_log("end until-3")


def test_a_revoked_response_never_starts(bench: Bench, start: Any) -> None:
    start(concurrency=1).ready()
    bench.send("until-1", "ok-2")
    bench.wait_for_log("start until-1")
    bench.cancel("ok-2")
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


def test_revokes_that_race_with_the_start_of_responses_leave_nothing_running(bench: Bench, worker: Worker) -> None:
    ids = [f"hold-{n}" for n in range(120)]
    for n in range(0, len(ids), 6):
        bench.send(*ids[n : n + 6])
        bench.cancel(*ids[n : n + 6])
    bench.send("ok-behind")
    bench.wait_for_log("end ok-behind")
    bench.wait_until_ended()
    assert bench.ask("active") == bench.ask("reserved") == []
    started = {line.split()[1] for line in bench.log if line.startswith("start hold")}
    revoked = {line.split()[1] for line in bench.log if line.startswith("revoked hold")}
    assert started <= revoked


def test_a_message_that_is_discarded_as_revoked_cancels_its_row(bench: Bench, worker: Worker) -> None:
    """A failover of Postgres may have lost the commit that came before the revoke."""
    bench.cancel("ok-discarded")
    until_sync(lambda: bench.ask("revoked") == ["ok-discarded"])
    bench.send("ok-discarded")
    bench.wait_for_cancelled("ok-discarded")
    assert "start ok-discarded" not in bench.log
    until_sync(lambda: bench.redis.sismember("discarded", "ok-discarded"))


def test_malformed_ids_in_a_revoke_do_no_harm(bench: Bench, worker: Worker) -> None:
    for malformed in ([], None, 7, ["", None, {}], "a\nb"):
        bench.ask("revoke", task_id=malformed)
    bench.send("ok-1")
    bench.wait_for_log("end ok-1")
    assert "Traceback" not in worker.text


UNSIGNED: list[tuple[str, dict[str, Any]]] = [
    ("revoke", {"task_id": ["hold-1"], "terminate": True, "signal": "SIGKILL"}),
    ("revoke", {"task_id": ["hold-1"], "signature": ["nonce", None, "00" * 16]}),
    ("revoke", {"task_id": ["hold-1"], "signature": 7}),
    ("terminate", {"task_id": ["hold-1"], "signal": "KILL"}),
    ("revoke_by_stamped_headers", {"headers": {"id": "hold-1"}, "terminate": True}),
    ("hello", {"from_node": "stranger", "revoked": ["hold-1", "ok-2"]}),
    ("shutdown", {}),
    ("pool_grow", {"n": 1000}),
    ("pool_restart", {}),
    ("autoscale", {"max": 1, "min": 1}),
    ("add_consumer", {"queue": "theirs"}),
    ("cancel_consumer", {"queue": "model.pretend"}),
    ("rate_limit", {"task_name": "responses.generate", "rate_limit": "1/h"}),
    ("time_limit", {"task_name": "responses.generate", "hard": 0.1}),
    ("disable_events", {}),
    ("election", {"id": "1", "topic": "t"}),
    ("objgraph", {}),
    ("no such command", {}),
]


def test_a_command_that_nobody_of_this_deployment_signed_does_nothing(bench: Bench, worker: Worker) -> None:
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    for command, arguments in UNSIGNED:
        reply = bench.ask_unsigned(command, **arguments)
        assert reply["error"].startswith("refused: "), (command, reply)
    bench.send("ok-2")
    bench.wait_for_log("end ok-2")
    assert "revoked hold-1" not in bench.log
    assert bench.ask("stats")["pool"]["max-concurrency"] == 64
    assert bench.ask("revoked") == []
    refusals = [line for line in worker.text.splitlines() if "refused" in line]
    assert len(refusals) == 2, "the 1st and the 10th"
    assert "refused 10 commands from Redis" in refusals[1]


def test_a_signed_command_holds_for_its_worker_as_it_was_signed(bench: Bench, worker: Worker) -> None:
    other = bench.signed(Command.SHUTDOWN, "other@test")
    assert "for another worker" in bench.ask_unsigned("shutdown", **other)["error"]
    to_all = bench.signed(Command.SHUTDOWN, None)  # type: ignore[arg-type]
    assert "for another worker" in bench.ask_unsigned("shutdown", **to_all)["error"]
    revoke = bench.signed(Command.REVOKE, task_id=["hold-1"])
    assert "not signed" in bench.ask_unsigned("revoke", **revoke | {"task_id": ["hold-2"]})["error"]
    assert "not signed" in bench.ask_unsigned("shutdown", **revoke)["error"]
    assert "ok" in bench.ask_unsigned("revoke", **revoke)


def test_commands_that_only_tell_something_need_no_signature(bench: Bench, worker: Worker) -> None:
    for command in ("ping", "stats", "active", "reserved", "scheduled", "registered", "conf", "clock"):
        assert "error" not in str(bench.ask_unsigned(command))[:20], command
