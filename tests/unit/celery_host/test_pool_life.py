"""How TaskPool starts and stops: its lifespan, its drain, and the work that it waits for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state as worker_state

from app.queue.message import Kind
from config.settings import ConfigError
from tests.support.pool import Request, SlowCleanup, forever, idle_runner, start_pool
from tests.support.waiting import PATIENCE_SECONDS, until_sync
from workers.celery_host import pool
from workers.celery_host.pool import StopWorker, TaskPool
from workers.generation.runner import Runner
from workers.generation.slots import Slots


def pool_of(slots: Slots, limit: int = 8) -> TaskPool:
    """A pool whose runner has these slots, on the node `node`."""
    return start_pool(limit=limit, runner=SimpleNamespace(slots=slots))


def test_the_runners_slots_decide_how_many_jobs_celery_may_hand_over() -> None:
    slots = Slots(4, 4)
    pool = pool_of(slots, limit=8)
    assert (pool.num_processes, slots.count, pool.info["max-concurrency"]) == (8, 4, 8)
    requests = [Request(pool, forever).started() for _ in range(8)]
    assert pool.free_places(Kind.ANSWERS) == 0
    late = Request(pool, forever)
    assert late.pid is None
    for request in requests:
        request.terminate()
    late.started()
    until_sync(lambda: pool.free_places(Kind.ANSWERS) == 7)
    pool.stop()


def turn(pool: TaskPool) -> None:
    """Waits until the pool's loop has done what it was given."""
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), pool._loop).result(PATIENCE_SECONDS)


def test_responses_are_offered_while_celery_takes_messages_and_until_the_drain() -> None:
    changes: list[int] = []
    slots = Slots(4, 4, changed=lambda: changes.append(slots.offered))
    pool = pool_of(slots)
    pool.offer(is_consuming=True)
    for is_consuming in (False, False, True, True):
        pool.offer(is_consuming=is_consuming)
    turn(pool)
    running = Request(pool, forever).started()
    assert changes[-2:] == [0, 4]
    drain = asyncio.run_coroutine_threadsafe(pool.drain(1000.0), pool._loop)
    until_sync(lambda: pool.is_draining)
    assert (slots.offered, slots.count) == (0, 4)
    pool.offer(is_consuming=True)
    turn(pool)
    assert slots.offered == 0, "it reconnects, and takes nothing all the same"
    pool.end_grace()
    drain.result(PATIENCE_SECONDS)
    assert running.ignored
    pool.stop()
    assert changes[-1] == 0


def test_one_task_enters_the_lifespan_and_leaves_it_after_the_last_job() -> None:
    steps: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: StopWorker, __: str) -> AsyncIterator[Runner]:
        steps.append(("enter", asyncio.current_task()))
        yield idle_runner()
        steps.append(("leave", asyncio.current_task()))

    pool = start_pool(lifespan)
    assert [step for step, _ in steps] == ["enter"]

    async def body() -> None:
        try:
            await forever()
        finally:
            steps.append(("job", None))

    Request(pool, body).started()
    pool.stop()
    assert [step for step, _ in steps] == ["enter", "job", "leave"]
    assert steps[0][1] is steps[2][1]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("LONGHAUL_MODEL: no such model"), 78, "the worker cannot start: LONGHAUL_MODEL: no such model"),
        (RuntimeError("two\nlines"), 1, "the worker cannot start: RuntimeError: two lines"),
        (TimeoutError(), 1, "the worker cannot start: TimeoutError: no message"),
    ],
)
def test_a_lifespan_that_fails_ends_the_worker_with_one_line(
    error: Exception, code: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(_: StopWorker, __: str) -> AsyncIterator[Runner]:
        raise error
        yield idle_runner()

    with caplog.at_level(logging.INFO), pytest.raises(WorkerShutdown) as stop:
        start_pool(lifespan)
    assert stop.value.code == code
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("CRITICAL", line)]


def test_a_signal_while_the_lifespan_is_entered_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    entering, left = threading.Event(), threading.Event()

    @asynccontextmanager
    async def lifespan(_: StopWorker, __: str) -> AsyncIterator[Runner]:
        entering.set()
        try:
            await forever()
            yield idle_runner()
        finally:
            left.set()

    threading.Thread(target=lambda: entering.wait() and monkeypatch.setattr(worker_state, "should_stop", 0)).start()
    with pytest.raises(WorkerShutdown) as stop:
        start_pool(lifespan)
    assert stop.value.code == 0
    assert left.is_set()


def test_a_draining_pool_does_not_report_jobs_that_never_started() -> None:
    """So Celery never acknowledges their messages: it returns counts to their list."""
    pool = start_pool(limit=1)
    running = Request(pool, forever).started()
    waiting = Request(pool, forever)
    drain = asyncio.run_coroutine_threadsafe(pool.drain(0.0), pool._loop)
    until_sync(lambda: pool._jobs.is_draining)
    late = Request(pool, forever)
    drain.result(PATIENCE_SECONDS)
    assert running.ignored
    pool.stop()
    assert not waiting.ended.is_set() and waiting.pid is None
    assert not late.ended.is_set() and late.pid is None


def test_a_job_that_comes_at_the_moment_of_a_drain_does_not_delay_it(
    quick_cleanup: None, caplog: pytest.LogCaptureFixture
) -> None:
    pool = start_pool()
    meeting = threading.Barrier(2)
    pool.call(meeting.wait)
    drain = asyncio.run_coroutine_threadsafe(pool.drain(0.0), pool._loop)
    late = Request(pool, forever)
    meeting.wait()
    drain.result(PATIENCE_SECONDS)
    pool.stop()
    assert not late.ended.is_set() and late.pid is None
    assert not pool.runs(late.id)
    assert "did not end in time" not in caplog.text


def test_the_pool_stops_although_a_clean_up_does_not_end(quick_cleanup: None, caplog: pytest.LogCaptureFixture) -> None:
    pool = start_pool()
    body = SlowCleanup()
    Request(pool, body, "resp_stuck").started()
    pool.stop()
    assert "did not end in time: resp_stuck" in caplog.text


def test_the_pool_stops_although_the_lifespan_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "LEAVE_SECONDS", 0.1)

    @asynccontextmanager
    async def lifespan(_: StopWorker, __: str) -> AsyncIterator[Runner]:
        yield idle_runner()
        await forever()

    start_pool(lifespan).stop()
    assert "did not stop within" in caplog.text


def test_a_stopping_pool_waits_for_background_work() -> None:
    pool = start_pool()
    done = threading.Event()

    async def work() -> None:
        await asyncio.sleep(0.05)
        done.set()

    pool.run_in_background(work())
    pool.stop()
    assert done.is_set()
