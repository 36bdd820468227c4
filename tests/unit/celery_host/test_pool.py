"""What TaskPool does for Celery with each job, without a broker: the tests play Celery's part."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.cycles import no_collector
from tests.support.pool import Expected, Request, SlowCleanup, forever, start_pool
from tests.support.waiting import PATIENCE_SECONDS, until_sync
from workers.celery_host.pool import TaskPool
from workers.generation.outcome import Cancelled


def test_the_consumer_is_woken_when_a_job_ends(task_pool: TaskPool) -> None:
    class Hub:
        woken = threading.Event()

        def call_soon(self, function: Callable[[], object]) -> None:
            function()
            self.woken.set()

    task_pool.register_with_event_loop(Hub())
    Request(task_pool, lambda: asyncio.sleep(0))
    assert Hub.woken.wait(PATIENCE_SECONDS)


def test_the_pool_alone_keeps_a_waiting_job_alive() -> None:
    pool = start_pool(limit=1)
    first = Request(pool, forever).started()
    ended = Request(pool, lambda: asyncio.sleep(0)).ended
    gc.collect()
    first.terminate()
    assert ended.wait(PATIENCE_SECONDS)
    pool.stop()


def test_an_ended_job_and_a_reported_cancellation_are_gone_without_the_garbage_collector(task_pool: TaskPool) -> None:
    with no_collector():
        request = Request(task_pool, lambda: asyncio.sleep(0))
        request.wait()
        until_sync(lambda: request.job() is None)
        request = Request(task_pool, forever)
        request.terminate()
        error = weakref.ref(request.wait()[1].exception)
        request.result = None
        until_sync(lambda: error() is None and request.job() is None)


def test_a_terminated_job_is_gone_only_after_its_clean_up(task_pool: TaskPool) -> None:
    body = SlowCleanup()
    request = Request(task_pool, body)
    request.terminate()
    assert body.cleaning.wait(PATIENCE_SECONDS)
    assert not request.ended.is_set()
    assert task_pool.info["active"] == 1
    body.may_end.set()
    assert request.ignored
    assert body.clean
    assert task_pool.info["active"] == 0


def test_a_body_may_await_while_it_cleans_up_and_its_result_counts(task_pool: TaskPool) -> None:
    async def body() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            return await asyncio.sleep(0.01, "finished all the same")
        raise AssertionError

    request = Request(task_pool, body).started()
    request.terminate()
    assert request.value == "'finished all the same'"


def test_a_second_reason_neither_replaces_the_first_nor_interrupts_the_clean_up(revoked: Any) -> None:
    pool = start_pool()
    revoked.add("resp")
    body = SlowCleanup()
    request = Request(pool, body)
    request.terminate()
    assert body.cleaning.wait(PATIENCE_SECONDS)
    request.terminate()
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until_sync(lambda: pool._jobs.is_draining)
    body.may_end.set()
    stopping.join(PATIENCE_SECONDS)
    assert body.clean
    assert body.reason is Cancelled.REVOKED


def test_termination_at_the_moment_of_acceptance_keeps_the_body_from_running(task_pool: TaskPool) -> None:
    ran: list[bool] = []

    class RevokedWhileWaiting(Request):
        def on_accepted(self, pid: int, at: float) -> None:
            super().on_accepted(pid, at)
            self.pool.terminate_job(pid)  # as Celery's Request does

    async def body() -> None:
        ran.append(True)

    assert RevokedWhileWaiting(task_pool, body).ignored
    assert not ran


def test_the_pid_of_an_ended_job_terminates_no_other(task_pool: TaskPool) -> None:
    ended = Request(task_pool, lambda: asyncio.sleep(0))
    ended.wait()
    body = SlowCleanup()
    body.may_end.set()
    running = Request(task_pool, body).started()
    task_pool.terminate_job(ended.pid or 0)
    assert Request(task_pool, lambda: asyncio.sleep(0)).value == "None"
    assert not body.cleaning.is_set()
    running.terminate()
    assert running.ignored and body.clean


def test_an_error_of_a_task_is_a_failure_and_is_logged_by_its_type_if_it_was_not_expected(
    task_pool: TaskPool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(error: Exception) -> None:
        raise error

    for error, lines in ((Expected(), 0), (KeyError("a prompt"), 1)):
        failed, info, _ = Request(task_pool, partial(fails, error)).wait()
        assert failed and type(info.exception) is type(error)
        assert len(caplog.records) == lines
    assert "the task failed: KeyError" in caplog.text
    assert "a prompt" not in caplog.text


def test_a_system_exit_in_a_task_is_a_failure_and_does_not_end_the_pool(task_pool: TaskPool) -> None:
    async def exits() -> None:
        raise SystemExit(3)

    failed, info, _ = Request(task_pool, exits).wait()
    assert failed
    assert "SystemExit escaped the task" in str(info.exception)
    assert Request(task_pool, lambda: asyncio.sleep(0)).wait()[0] == 0


def test_a_callback_that_raises_does_not_cost_a_slot(task_pool: TaskPool) -> None:
    class Bad(Request):
        def on_success(self, result: Any) -> None:
            raise ValueError

    for _ in range(20):
        Bad(task_pool, lambda: asyncio.sleep(0))
    assert Request(task_pool, lambda: asyncio.sleep(0)).wait()[0] == 0


def test_background_work_that_fails_is_logged(task_pool: TaskPool, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError

    task_pool.run_in_background(work())
    until_sync(lambda: "background work of the pool went wrong: ValueError at test_pool.py" in caplog.text)


def test_our_revoke_terminates_every_job_of_the_id_once_through_celerys_request(task_pool: TaskPool) -> None:
    requests = [Request(task_pool, forever, task_id).started() for task_id in ("twice", "twice", "other")]
    task_pool.revoke(["twice", "unknown"])
    until_sync(lambda: not task_pool.runs("twice"))
    task_pool.revoke(["twice"])
    assert task_pool.runs("other")
    assert [request.terminated for request in requests] == [1, 1, 0]
