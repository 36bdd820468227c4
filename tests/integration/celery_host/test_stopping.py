"""How a worker starts, and how it stops."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.celery_bench import Bench
from tests.support.forks import CELERY, Forked
from tests.support.waiting import PATIENCE_SECONDS, until_sync


def test_at_sigterm_responses_get_their_grace_and_are_then_released(bench: Bench, start: Any) -> None:
    worker = start(concurrency=3, LONGHAUL_SHUTDOWN_GRACE_SECONDS="1000").ready()
    bench.send("until-1", "hold-2", "hold-3")
    bench.wait_for_log("start until-1", "start hold-2", "start hold-3")
    worker.send_signal()
    until_sync(lambda: "stopping; running responses have 1000 s" in worker.text)
    bench.send("ok-4")
    bench.redis.set("go", 1)
    bench.wait_for_log("end until-1")
    bench.cancel("hold-2")  # a revoke during the grace takes effect
    bench.wait_for_log("revoked hold-2")
    worker.send_signal()  # the second signal: the grace is over
    assert worker.wait() == 0
    assert bench.log[-2:] == ["shutdown hold-3", "leave lifespan"]
    assert "start ok-4" not in bench.log
    assert bench.queued() == 1


def test_a_worker_that_stops_takes_nothing_after_it_reconnected(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="1000").ready()
    bench.send("until-1")
    bench.wait_for_log("start until-1")
    worker.send_signal()
    until_sync(lambda: "stopping; running responses have 1000 s" in worker.text)
    bench.break_connections()
    until_sync(lambda: worker.text.count("Connected to") > 1)
    worker.ready()
    bench.send("ok-2")
    bench.ask("ping")
    bench.ask("ping")
    assert bench.queued() == 1  # for other workers, now and not only when this one has ended
    bench.redis.set("go", 1)
    assert worker.wait() == 0
    assert "end until-1" in bench.log and "start ok-2" not in bench.log


def test_a_worker_that_stops_drops_an_answer_that_it_did_not_begin(bench: Bench, start: Any) -> None:
    """Maintenance sends the answer to another worker; nobody else reads the list of this one."""
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="1000").ready()
    bench.send("block-1")
    bench.wait_for_log("start block-1")  # the worker fetches it with the thread that answers
    bench.ask("meet_loop")
    worker.send_signal()
    bench.send("ok-2")
    until_sync(lambda: bench.queued() == 0, what="the worker has taken it")
    bench.ask("meet_loop")
    assert worker.wait() == 0
    assert "end block-1" in bench.log and "start ok-2" not in bench.log
    assert bench.queued() == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP, None])
def test_other_signals_and_flowers_button_stop_a_worker_the_same_way(
    bench: Bench, start: Any, signum: signal.Signals | None
) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="0").ready()
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    if signum is None:
        bench.ask("shutdown")
    else:
        worker.send_signal(signum)
    assert worker.wait() == 0
    assert bench.log[-2:] == ["shutdown hold-1", "leave lifespan"]
    assert bench.redis.smembers("cancelled") == set()


def test_the_third_signal_ends_a_worker_at_once(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="1000").ready()
    bench.send("stuck-1")
    bench.wait_for_log("start stuck-1")
    worker.send_signal()
    until_sync(lambda: "stopping" in worker.text)
    worker.send_signal()
    bench.wait_for_log("shutdown stuck-1")
    worker.send_signal()
    assert worker.wait() == 1
    assert "leave lifespan" not in bench.log


def test_a_worker_that_celery_cannot_stop_exits_nevertheless(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="0", PRETEND_STOP="never").ready()
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    worker.send_signal()
    assert worker.wait() == 1
    assert "the worker does not stop; exiting all the same" in worker.text
    assert "shutdown hold-1" in bench.log


def test_a_worker_that_stops_itself_has_the_given_exit_code(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="1000").ready()
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    bench.send("leave-2")
    assert worker.wait() == 7
    assert {"shutdown hold-1", "shutdown leave-2"} < set(bench.log)


def test_a_worker_without_settings_ends_with_one_line(tmp_path: Path) -> None:
    worker = Forked(CELERY, ["-A", "workers.main:celery", "worker"], os.environ, tmp_path / "log")
    assert worker.wait(PATIENCE_SECONDS) == 78
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.startswith("longhaul: REDIS_URL is not set")
