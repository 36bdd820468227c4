"""A worker whose Redis fails, or whose Celery does."""

from __future__ import annotations

from typing import Any

from tests.support.celery_bench import Bench
from tests.support.celery_processes import Worker
from tests.support.services import Services
from tests.support.waiting import until_sync


def test_a_broken_connection_neither_repeats_nor_ends_what_runs(bench: Bench, worker: Worker) -> None:
    ids = [f"until-{n}" for n in range(20)]
    bench.send(*ids)
    bench.wait_for_log(*(f"start {i}" for i in ids))
    ready = worker.text.count("Connected to")
    bench.break_connections()
    until_sync(lambda: worker.text.count("Connected to") > ready)
    bench.send("ok-after")
    bench.wait_for_log("end ok-after")
    bench.redis.set("go", 1)
    bench.wait_for_log(*(f"end {i}" for i in ids))
    assert sorted(line for line in bench.log if line.startswith("start until")) == sorted(f"start {i}" for i in ids)
    assert "CANCEL_TASKS" not in worker.text and "Celery 6.0" not in worker.text


def test_an_error_in_celerys_main_thread_ends_nothing_that_runs(bench: Bench, worker: Worker) -> None:
    bench.send("until-1")
    bench.wait_for_log("start until-1")
    ready = worker.text.count("Connected to")
    bench.ask("raise_error")
    until_sync(lambda: worker.text.count("Connected to") > ready)
    bench.send("ok-after")
    bench.wait_for_log("end ok-after")
    bench.redis.set("go", 1)
    bench.wait_for_log("end until-1")
    assert bench.log.count("start until-1") == 1


def test_a_worker_works_on_after_redis_lost_its_data(bench: Bench, worker: Worker) -> None:
    bench.send("hold-1")
    bench.wait_for_log("start hold-1")
    bench.broker.flushdb()
    bench.send("ok-2")
    bench.wait_for_log("end ok-2")
    bench.cancel("hold-1")
    bench.wait_for_log("revoked hold-1")


def test_a_worker_outlives_redis_and_can_be_stopped_without_it(bench: Bench, start: Any, services: Services) -> None:
    worker = start().ready()
    services.valkey.kill()
    until_sync(lambda: "Trying again" in worker.text)
    services.valkey.start()
    until_sync(lambda: worker.text.count("Connected to") > 1)
    bench.send("ok-1")
    bench.wait_for_log("end ok-1")
    services.valkey.kill()
    until_sync(lambda: worker.text.count("Trying again") > 1)
    worker.send_signal()
    assert worker.wait() == 0
