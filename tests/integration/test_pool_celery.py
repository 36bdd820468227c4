"""Real `celery worker` processes with our pool, task and remote control; only the runner pretends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection, Producer, Queue

from app.queue import TASK, Priority, TaskQueue, make_celery
from config.settings import load_settings
from tests.support.celery_processes import QUEUE, ROOT, Worker, own_database
from tests.support.queue_app import SECRET, STORE
from tests.support.services import Services
from tests.support.waiting import until_sync
from workers import panel
from workers.program import PromptConnection


class Bench:
    """Sends, revokes, and reads what the pretend runners say."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.settings = load_settings(REDIS_URL=url)
        self.celery = make_celery(self.settings)
        self.broker = redis.Redis.from_url(url, decode_responses=True)
        self.redis = redis.Redis.from_url(url.removesuffix("/7") + f"/{STORE}", decode_responses=True)
        self.flush()

    def flush(self) -> None:
        self.broker.flushdb()
        self.redis.flushdb()

    def close(self) -> None:
        self.broker.close()
        self.redis.close()

    def break_connections(self) -> None:
        """All but those of the pretended store; CLIENT KILL, as a failover does."""
        for client in self.broker.client_list():
            if client["db"] == "7":
                self.broker.client_kill_filter(_id=client["id"], skipme=True)

    def send(self, *ids: str, priority: int = Priority.FOREGROUND) -> None:
        async def all_of_them() -> None:
            queue = TaskQueue(self.settings)
            for response_id in ids:
                await queue.enqueue(response_id, "demo", QUEUE, priority)
            await queue.close()

        asyncio.run(all_of_them())

    def cancel(self, *ids: str) -> None:
        """As the API does."""
        asyncio.run(TaskQueue(self.settings).revoke(*ids))

    @property
    def log(self) -> list[str]:
        return self.redis.lrange("log", 0, -1)

    def said(self, *lines: str) -> None:
        until_sync(lambda: set(lines) <= set(self.log), 20.0, f"{lines} in {self.log}")

    def rows_cancelled(self, *ids: str) -> None:
        until_sync(lambda: set(ids) <= self.redis.smembers("cancelled"), 20.0, f"{ids} cancelled")

    def ended(self, taken: int = 0, active: int = 0) -> None:
        """Waits until the worker has taken at least so many messages, and runs no more than `active` of them."""

        def done() -> bool:
            stats = self.ask("stats")
            return stats["total"].get(TASK, 0) >= taken and stats["pool"]["active"] == active

        until_sync(done, 20.0)

    def queued(self) -> int:
        return sum(self.broker.llen(name) for name in self.broker.keys(f"{QUEUE}*"))

    def ask(self, command: str, **arguments: Any) -> Any:
        """A remote control command and the worker's reply."""
        # A connection of its own: an earlier test may have broken those that kombu keeps in this process.
        with self.celery.connection_for_write() as connection:
            (reply,) = self.celery.control.broadcast(
                command, arguments=arguments, reply=True, limit=1, timeout=10, connection=connection
            )
        return next(iter(reply.values()))


@pytest.fixture
def bench(redis_url: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(own_database(redis_url), tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def start(bench: Bench) -> Iterator[Any]:
    """Starts workers; `own@test` is the name of the first."""
    workers: list[Worker] = []

    def start(name: str = "own", **options: Any) -> Worker:
        workers.append(Worker(bench.url, bench.folder, name, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def worker(start: Any) -> Worker:
    """A worker of its own for each test: it remembers what was revoked."""
    worker: Worker = start().ready()
    return worker


# Running


def test_64_responses_run_at_once_and_one_revoke_ends_them_all(bench: Bench, worker: Worker) -> None:
    ids = [f"hold-{n}" for n in range(64)]
    bench.send(*ids, "ok-late")
    bench.said(*(f"start {i}" for i in ids))
    assert "start ok-late" not in bench.log
    assert bench.queued() == 1
    bench.cancel(*ids)
    bench.said(*(f"revoked {i}" for i in ids), "end ok-late")
    bench.rows_cancelled(*ids)


def test_what_a_worker_has_no_slot_for_stays_for_others(bench: Bench, start: Any) -> None:
    ids = [f"hold-{n}" for n in range(10)]
    bench.send(*ids)
    start(concurrency=3).ready()
    bench.said("start hold-0", "start hold-1", "start hold-2")
    assert bench.queued() == 7
    start("other", concurrency=7).ready()
    bench.said(*(f"start {i}" for i in ids))
    bench.cancel(*ids)
    bench.said(*(f"revoked {i}" for i in ids))


def test_urgent_ones_are_taken_first(bench: Bench, start: Any) -> None:
    for priority in reversed(Priority):
        bench.send(f"ok-{priority.name}", priority=priority)
    start(concurrency=1).ready()
    bench.said("end ok-FLEX")
    started = [line for line in bench.log if line.startswith("start")]
    assert started == [f"start ok-{priority.name}" for priority in Priority]


def test_the_pool_grows_and_shrinks_by_remote_control(bench: Bench, start: Any) -> None:
    start(concurrency=1).ready()
    bench.send("hold-1", "hold-2", "ok-3")
    bench.said("start hold-1")
    bench.ask("pool_grow", n=1)
    bench.said("start hold-2")
    bench.ask("pool_shrink", n=1)
    assert bench.ask("pool_shrink", n=1) == {"error": "ValueError('the pool has 1 slots: one must stay')"}
    assert bench.ask("stats")["pool"]["max-concurrency"] == 1
    bench.cancel("hold-1")
    bench.said("revoked hold-1")
    assert "start ok-3" not in bench.log
    bench.cancel("hold-2")
    bench.said("end ok-3")


# Revoking


@pytest.mark.parametrize("terminate", [False, True])
def test_revoke_and_terminate_cancel_a_running_response_and_its_row(
    bench: Bench, worker: Worker, terminate: bool
) -> None:
    bench.send("hold-1", "raise-2", "until-3")
    bench.said("start hold-1", "start raise-2", "start until-3")
    bench.celery.control.revoke(["hold-1", "raise-2"], terminate=terminate)
    bench.said("revoked hold-1", "revoked raise-2")
    bench.rows_cancelled("hold-1", "raise-2")
    bench.redis.set("go", 1)
    bench.said("end until-3")


def test_the_old_terminate_command_does_the_same(bench: Bench, worker: Worker) -> None:
    bench.send("hold-1")
    bench.said("start hold-1")
    bench.ask("terminate", signal="TERM", task_id="hold-1")
    bench.said("revoked hold-1")
    bench.rows_cancelled("hold-1")


def test_a_queued_response_is_cancelled_before_any_worker_has_a_slot(bench: Bench, start: Any) -> None:
    start(concurrency=1).ready()
    bench.send("until-1", "ok-2")
    bench.said("start until-1")
    bench.celery.control.revoke("ok-2")
    bench.rows_cancelled("ok-2")
    assert bench.queued() == 1
    bench.redis.set("go", 1)
    until_sync(lambda: bench.queued() == 0)
    bench.send("ok-3")
    bench.said("end ok-3")
    assert "start ok-2" not in bench.log


def test_cancel_finds_the_original_after_its_duplicate_was_dropped(bench: Bench, worker: Worker) -> None:
    """Celery forgets a running id when a copy of it ends, and would say `tasks unknown`."""
    bench.send("hold-1")
    bench.said("start hold-1")
    bench.send("hold-1")
    bench.ended(2, active=1)
    bench.cancel("hold-1")
    bench.said("revoked hold-1")
    assert not bench.ask("active")


def test_revokes_that_race_with_the_start_leave_nothing_running(bench: Bench, worker: Worker) -> None:
    ids = [f"hold-{n}" for n in range(120)]
    for n in range(0, len(ids), 6):
        bench.send(*ids[n : n + 6])
        bench.cancel(*ids[n : n + 6])
    bench.rows_cancelled(*ids)
    bench.send("ok-behind")
    bench.said("end ok-behind")
    bench.ended()
    assert bench.ask("active") == bench.ask("reserved") == []
    started = {line.split()[1] for line in bench.log if line.startswith("start hold")}
    revoked = {line.split()[1] for line in bench.log if line.startswith("revoked hold")}
    assert started <= revoked


def test_a_revoke_is_written_once_postgres_is_back(bench: Bench, worker: Worker) -> None:
    bench.redis.set("store down", 1)
    bench.send("hold-1")
    bench.said("start hold-1")
    bench.cancel("hold-1")
    bench.said("revoked hold-1")
    bench.rows_cancelled("hold-1")


def test_a_message_that_is_discarded_as_revoked_cancels_its_row(bench: Bench, worker: Worker) -> None:
    """The first try to write it may have died with the worker that tried."""
    bench.cancel("ok-discarded")
    bench.rows_cancelled("ok-discarded")
    bench.redis.delete("cancelled")
    bench.send("ok-discarded")
    bench.rows_cancelled("ok-discarded")
    assert "start ok-discarded" not in bench.log


def test_strange_ids_in_a_revoke_harm_nobody(bench: Bench, worker: Worker) -> None:
    for strange in ([], None, 7, ["", None, {}], "a\nb"):
        bench.ask("revoke", task_id=strange, terminate=True, signal="NONSENSE")
    bench.send("ok-1")
    bench.said("end ok-1")
    assert "Traceback" not in worker.text


# Memory


def test_however_many_have_ended_nothing_of_them_waits_for_the_garbage_collector(bench: Bench, start: Any) -> None:
    """Some may be held by what they opened (connections), or be the last: a few, and not more after more of them."""
    start(concurrency=4).ready()
    kinds = ["Job", "Request", "Message", "Task", "Context", "TraceInfo"]
    begun = bench.ask("circles", kinds=kinds)
    ids = [f"{how}-{n}" for n in range(25) for how in ("ok", "short", "dup", "gone", "lost", "bad", "fail", "bug")]
    held = [f"hold-{n}" for n in range(20)]
    bench.send(*ids)
    bench.ended(len(ids))
    for n in range(0, len(held), 4):
        bench.send(*held[n : n + 4])
        bench.said(*(f"start {i}" for i in held[n : n + 4]))
        bench.cancel(*held[n : n + 4])
    bench.ended(len(ids) + len(held))
    left = bench.ask("circles", kinds=kinds)
    assert {kind: left[kind] - begun[kind] for kind in kinds if left[kind] - begun[kind] > 50} == {}


def test_of_what_was_revoked_a_worker_remembers_the_latest(bench: Bench, worker: Worker) -> None:
    ids = [f"gone-{n}" for n in range(panel.REVOKED_KEPT + 100)]
    bench.cancel(*ids[:100])
    until_sync(lambda: len(bench.ask("revoked")) == 100)
    bench.cancel(*ids[100:])
    until_sync(lambda: set(bench.ask("revoked")) == set(ids[100:]), 30.0)


# Logs


def test_nothing_that_a_prompt_may_be_in_reaches_the_log_and_no_failure_has_a_traceback(
    bench: Bench, worker: Worker
) -> None:
    bench.send("fail-1", "bug-1", "bad-1", "gone-1", "lost-1", "dup-1", "short-1")
    bench.ended(7)
    assert "bug-1: ValueError at queue_app.py:" in worker.text
    assert SECRET not in worker.text
    assert "Traceback" not in worker.text
    assert "Failed to mark task" not in worker.text


# Redis in trouble


def test_a_broken_connection_neither_repeats_nor_ends_what_runs(bench: Bench, worker: Worker) -> None:
    ids = [f"until-{n}" for n in range(20)]
    bench.send(*ids)
    bench.said(*(f"start {i}" for i in ids))
    ready = worker.text.count("Connected to")
    bench.break_connections()
    until_sync(lambda: worker.text.count("Connected to") > ready, 30.0)
    bench.send("ok-after")
    bench.said("end ok-after")
    bench.redis.set("go", 1)
    bench.said(*(f"end {i}" for i in ids))
    assert sorted(line for line in bench.log if line.startswith("start until")) == sorted(f"start {i}" for i in ids)
    assert "CANCEL_TASKS" not in worker.text and "Celery 6.0" not in worker.text


def test_an_error_in_celerys_main_thread_ends_nothing_that_runs(bench: Bench, worker: Worker) -> None:
    bench.send("until-1")
    bench.said("start until-1")
    ready = worker.text.count("Connected to")
    bench.ask("stumble")
    until_sync(lambda: worker.text.count("Connected to") > ready, 30.0)
    bench.send("ok-after")
    bench.said("end ok-after")
    bench.redis.set("go", 1)
    bench.said("end until-1")
    assert bench.log.count("start until-1") == 1


def test_a_lost_connection_with_unacknowledged_messages_is_closed_without_an_error(redis_url: str) -> None:
    for kind, fails in ((Connection, True), (PromptConnection, False)):
        connection = kind(own_database(redis_url))
        queue = Queue("unacknowledged")(connection.default_channel)
        queue.declare()
        Producer(connection.default_channel, routing_key=queue.name).publish("a message")
        assert queue.get() is not None
        connection.default_channel._disconnect_pools()
        connection.transport.client = None  # as kombu leaves it
        with pytest.raises(AttributeError) if fails else nullcontext():
            connection.release()


def test_a_redis_that_forgot_everything_is_worked_with_all_the_same(bench: Bench, worker: Worker) -> None:
    bench.send("hold-1")
    bench.said("start hold-1")
    bench.broker.flushdb()
    bench.send("ok-2")
    bench.said("end ok-2")
    bench.cancel("hold-1")
    bench.said("revoked hold-1")


def test_a_worker_outlives_redis_and_can_be_stopped_without_it(bench: Bench, start: Any, services: Services) -> None:
    worker = start().ready()
    services.valkey.kill()
    until_sync(lambda: "Trying again" in worker.text, 30.0)
    services.valkey.start()
    until_sync(lambda: worker.text.count("Connected to") > 1, 30.0)
    bench.send("ok-1")
    bench.said("end ok-1")
    services.valkey.kill()
    until_sync(lambda: worker.text.count("Trying again") > 1, 30.0)
    worker.tell()
    assert worker.wait() == 0


# Starting and stopping


def test_at_sigterm_responses_get_their_grace_and_are_then_released(bench: Bench, start: Any) -> None:
    worker = start(concurrency=3, LONGHAUL_SHUTDOWN_GRACE_SECONDS="60").ready()
    bench.send("until-1", "hold-2", "hold-3")
    bench.said("start until-1", "start hold-2", "start hold-3")
    worker.tell()
    until_sync(lambda: "stopping; running responses have 60 s" in worker.text)
    bench.send("ok-4")
    bench.redis.set("go", 1)
    bench.said("end until-1")
    bench.cancel("hold-2")  # heard during the grace
    bench.said("revoked hold-2")
    worker.tell()  # again: the grace is over
    assert worker.wait() == 0
    assert bench.log[-2:] == ["shutdown hold-3", "leave lifespan"]
    assert "start ok-4" not in bench.log
    assert bench.queued() == 1
    assert bench.redis.smembers("cancelled") == {"hold-2"}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_other_signals_stop_it_the_same_way(bench: Bench, start: Any, signum: signal.Signals) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="0").ready()
    bench.send("hold-1")
    bench.said("start hold-1")
    worker.tell(signum)
    assert worker.wait() == 0
    assert bench.log[-2:] == ["shutdown hold-1", "leave lifespan"]
    assert bench.redis.smembers("cancelled") == set()


def test_flowers_shut_down_button_stops_it_the_same_way(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="0").ready()
    bench.send("hold-1")
    bench.said("start hold-1")
    bench.celery.control.shutdown(destination=["own@test"])
    assert worker.wait() == 0
    assert bench.log[-2:] == ["shutdown hold-1", "leave lifespan"]


def test_the_third_signal_ends_it_at_once(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="60").ready()
    bench.send("stuck-1")
    bench.said("start stuck-1")
    worker.tell()
    until_sync(lambda: "stopping" in worker.text)
    worker.tell()
    bench.said("shutdown stuck-1")
    worker.tell()
    assert worker.wait() == 1
    assert "leave lifespan" not in bench.log


def test_a_worker_that_celery_cannot_stop_ends_all_the_same(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="0", PRETEND_STOP="never").ready()
    bench.send("hold-1")
    bench.said("start hold-1")
    worker.tell()
    assert worker.wait() == 1
    assert "it does not stop; exiting all the same" in worker.text
    assert "shutdown hold-1" in bench.log


def test_a_worker_that_leaves_by_itself_says_so_by_its_exit_code(bench: Bench, start: Any) -> None:
    worker = start(LONGHAUL_SHUTDOWN_GRACE_SECONDS="60").ready()
    bench.send("hold-1")
    bench.said("start hold-1")
    bench.send("leave-2")
    assert worker.wait() == 7
    assert {"shutdown hold-1", "shutdown leave-2"} < set(bench.log)


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [("config", 78, "LONGHAUL_MODEL: no such model"), ("crash", 1, "RuntimeError: the engine did not start")],
)
def test_a_worker_that_cannot_start_ends_with_one_line(start: Any, how: str, code: int, line: str) -> None:
    worker = start(PRETEND_START=how)
    assert worker.wait() == code
    (critical,) = [text for text in worker.text.splitlines() if text]
    assert "CRITICAL" in critical
    assert critical.endswith(f"the worker cannot start: {line}")


def test_a_worker_can_be_stopped_while_its_engine_loads(bench: Bench, start: Any) -> None:
    worker = start(PRETEND_START="slow")
    bench.said("loading slow")
    worker.tell()
    assert worker.wait() == 0


def test_a_worker_without_settings_ends_with_one_line() -> None:
    args = [sys.executable, "-m", "celery", "-A", "workers.main:celery", "worker"]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78
    assert done.stderr.startswith("longhaul: REDIS_URL is not set")
    assert done.stderr.count("\n") == 1
