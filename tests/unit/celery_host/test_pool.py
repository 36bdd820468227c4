"""What TaskPool owes to Celery and to the runner, without a broker: this module plays Celery's part."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from celery.exceptions import Ignore, WorkerShutdown
from celery.worker import state as worker_state

from config.settings import ConfigError
from tests.support.circles import no_collector
from tests.support.waiting import until, until_sync
from workers.celery_host import jobs, pool
from workers.celery_host.bridge import aio_await
from workers.celery_host.pool import TaskPool
from workers.celery_host.slots import Slots
from workers.generation.cancellation import Cancelled, current_runner, leave, why_cancelled

Body = Callable[[], Coroutine[Any, Any, Any]]


class Call:
    """One request to the pool, with what Celery would hear of it."""

    def __init__(self, pool: TaskPool, body: Body, task_id: str = "resp") -> None:
        self.pid: int | None = None
        self.accepted_in = self.ended_in = ""
        self.result: Any = None
        self.ended = threading.Event()
        self.pool = pool

        def target() -> tuple[int, Any, float]:  # as Celery's tracer: synchronous
            return 0, aio_await(body()), 0.0

        # Weakly, as Celery's Request.
        self.job = weakref.ref(pool.on_apply(target, (), {}, self.on_end, self.on_accept, correlation_id=task_id))

    def on_accept(self, pid: int, _at: float) -> None:
        self.accepted_in = threading.current_thread().name
        self.pid = pid

    def on_end(self, result: Any) -> None:
        self.ended_in = threading.current_thread().name
        self.result = result
        self.ended.set()

    def started(self) -> Call:
        until_sync(lambda: self.pid is not None)
        return self

    def terminate(self) -> None:
        self.pool.terminate_job(self.started().pid, 15)

    def wait(self) -> Any:
        assert self.ended.wait(10)
        return self.result

    @property
    def ignored(self) -> bool:
        return is_ignored(self.wait())


def is_ignored(result: Any) -> bool:
    """Whether Celery forgets the request and tells nobody. (billiard wraps exceptions.)"""
    failed, info, _ = result
    return bool(failed) and isinstance(info.exception.exc, Ignore)


def start_pool(lifespan: Any = None, limit: int = 8) -> TaskPool:
    class Pool(TaskPool):
        pass

    if lifespan is not None:
        Pool.lifespan = staticmethod(lifespan)
    pool = Pool(limit)
    pool.start()
    return pool


@pytest.fixture
def task_pool() -> Iterator[TaskPool]:
    pool = start_pool()
    yield pool
    pool.terminate()


@pytest.fixture
def revoked() -> Iterator[Any]:
    """Celery's list of revoked ids, which says why a job is terminated."""
    yield worker_state.revoked
    worker_state.revoked.clear()


@pytest.fixture
def quick_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CLEANUP_SECONDS", 0.1)
    monkeypatch.setattr(pool, "CLEANUP_SECONDS", 0.1)


async def forever() -> None:
    await asyncio.Event().wait()


class Recorder:
    """A body that runs until it is cancelled, and takes its time to clean up."""

    def __init__(self) -> None:
        self.reason: Cancelled | None = None
        self.cleaning = threading.Event()
        self.may_end = threading.Event()
        self.clean = False

    async def __call__(self) -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            self.reason = why_cancelled()
            self.cleaning.set()
            await until(self.may_end.is_set)
            self.clean = True
            raise


def test_what_the_body_awaited_is_what_celery_is_told(task_pool: TaskPool) -> None:
    async def body() -> str:
        await asyncio.sleep(0)
        return "value"

    assert Call(task_pool, body).wait() == (0, "value", 0.0)


def test_celery_is_called_back_on_the_loops_thread(task_pool: TaskPool) -> None:
    call = Call(task_pool, lambda: asyncio.sleep(0))
    call.wait()
    assert (call.accepted_in, call.ended_in) == ("longhaul-pool", "longhaul-pool")


def test_the_consumer_is_woken_when_a_job_ends(task_pool: TaskPool) -> None:
    class Hub:
        woken = threading.Event()

        def call_soon(self, function: Callable[[], object]) -> None:
            function()
            self.woken.set()

    task_pool.register_with_event_loop(Hub())
    Call(task_pool, lambda: asyncio.sleep(0))
    assert Hub.woken.wait(10)


def test_64_jobs_run_at_once_each_under_a_pid_of_its_own() -> None:
    pool = start_pool(limit=64)
    barrier: asyncio.Barrier | None = None

    async def body() -> None:
        nonlocal barrier
        barrier = barrier or asyncio.Barrier(64)
        await barrier.wait()

    calls = [Call(pool, body) for _ in range(64)]
    assert [call.wait()[0] for call in calls] == [0] * 64
    assert len({call.pid for call in calls}) == 64
    assert all(isinstance(call.pid, int) for call in calls)
    pool.stop()


def test_no_more_jobs_run_at_once_than_the_limit(task_pool: TaskPool) -> None:
    running = most = 0

    async def body() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    for call in [Call(task_pool, body) for _ in range(64)]:
        call.wait()
    assert most == 8


def test_a_waiting_job_is_kept_alive_by_the_pool_alone() -> None:
    pool = start_pool(limit=1)
    first = Call(pool, forever).started()
    ended = Call(pool, lambda: asyncio.sleep(0)).ended
    gc.collect()
    first.terminate()
    assert ended.wait(10)
    pool.stop()


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_ended_job_is_gone_without_the_garbage_collector(task_pool: TaskPool, cancelled: bool) -> None:
    with no_collector():
        call = Call(task_pool, forever if cancelled else lambda: asyncio.sleep(0))
        if cancelled:
            call.terminate()
        call.wait()
        until_sync(lambda: call.job() is None)


def test_a_reported_cancellation_is_gone_without_the_garbage_collector(task_pool: TaskPool) -> None:
    with no_collector():
        call = Call(task_pool, forever)
        call.terminate()
        error = weakref.ref(call.wait()[1].exception.exc)
        call.result = None
        until_sync(lambda: error() is None)


def test_a_terminated_job_is_gone_only_after_its_clean_up(task_pool: TaskPool) -> None:
    body = Recorder()
    call = Call(task_pool, body)
    call.terminate()
    assert body.cleaning.wait(10)
    assert not call.ended.is_set()
    assert task_pool.info["active"] == 1
    body.may_end.set()
    assert call.ignored
    assert body.clean
    assert task_pool.info["active"] == 0


def test_a_body_may_await_while_it_cleans_up_and_its_result_counts(task_pool: TaskPool) -> None:
    def target() -> tuple[int, Any, float]:
        try:
            aio_await(forever())
        except asyncio.CancelledError:
            return 0, aio_await(asyncio.sleep(0.01, "finished all the same")), 0.0
        raise AssertionError

    ended: list[Any] = []
    job = task_pool.on_apply(target, callback=ended.append)
    until_sync(lambda: job.accepted)
    task_pool.terminate_job(job.pid)
    until_sync(lambda: ended)
    assert ended == [(0, "finished all the same", 0.0)]


def test_revoked_ids_are_cancelled_for_that_reason_and_others_for_shutdown(task_pool: TaskPool, revoked: Any) -> None:
    revoked.add("resp_1")
    bodies = Recorder(), Recorder()
    calls = [Call(task_pool, body, f"resp_{n}") for n, body in enumerate(bodies, 1)]
    for call, body in zip(calls, bodies, strict=True):
        body.may_end.set()
        call.terminate()
        call.wait()
    assert [body.reason for body in bodies] == [Cancelled.REVOKED, Cancelled.SHUTDOWN]


def test_a_second_reason_neither_replaces_the_first_nor_interrupts_the_clean_up(revoked: Any) -> None:
    pool = start_pool()
    revoked.add("resp")
    body = Recorder()
    call = Call(pool, body)
    call.terminate()
    assert body.cleaning.wait(10)
    call.terminate()
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until_sync(lambda: pool._jobs._closing)
    body.may_end.set()
    stopping.join(10)
    assert body.clean
    assert body.reason is Cancelled.REVOKED


def test_termination_at_the_moment_of_acceptance_keeps_the_body_from_running(task_pool: TaskPool) -> None:
    ran: list[bool] = []
    ended: list[Any] = []

    def target() -> tuple[int, Any, float]:
        ran.append(True)
        return 0, None, 0.0

    # What Request.on_accepted does with a revoke that came while the job waited.
    task_pool.on_apply(target, accept_callback=lambda pid, _: task_pool.terminate_job(pid), callback=ended.append)
    until_sync(lambda: ended)
    assert not ran
    assert is_ignored(ended[0])


def test_terminating_what_is_not_there_does_nothing(task_pool: TaskPool) -> None:
    call = Call(task_pool, lambda: asyncio.sleep(0))
    call.wait()
    task_pool.terminate_job(call.pid or 0)
    task_pool.terminate_job(12345)


def test_grow_lets_waiting_jobs_start_and_shrink_lets_running_ones_go_on() -> None:
    pool = start_pool(limit=1)
    calls = [Call(pool, forever).started(), Call(pool, forever)]
    assert calls[1].pid is None
    pool.grow()
    calls[1].started()
    pool.shrink()
    late = Call(pool, lambda: asyncio.sleep(0))
    calls[0].terminate()
    calls[0].wait()
    assert late.pid is None
    calls[1].terminate()
    late.wait()
    assert (pool.num_processes, pool.info["max-concurrency"]) == (1, 1)
    pool.stop()


def test_the_last_slot_cannot_be_shrunk_away(task_pool: TaskPool) -> None:
    with pytest.raises(ValueError, match="one must stay"):
        task_pool.shrink(8)
    assert task_pool.num_processes == 8


def test_info_names_what_flower_shows(task_pool: TaskPool) -> None:
    info = task_pool.info
    assert info["implementation"].endswith("Pool")
    assert (info["max-concurrency"], info["active"], len(info["processes"])) == (8, 0, 1)


def test_what_escapes_a_task_is_a_failure_not_the_pools_end(task_pool: TaskPool) -> None:
    async def exits() -> None:
        raise SystemExit(3)

    failed, info, _ = Call(task_pool, exits).wait()
    assert failed
    assert "SystemExit escaped the task" in str(info.exception)
    assert Call(task_pool, lambda: asyncio.sleep(0)).wait()[0] == 0


def test_a_callback_that_raises_does_not_cost_a_slot(task_pool: TaskPool) -> None:
    def target() -> tuple[int, Any, float]:
        return 0, None, 0.0

    def bad(_: Any) -> None:
        raise ValueError

    for _ in range(20):
        task_pool.on_apply(target, callback=bad)
    assert Call(task_pool, lambda: asyncio.sleep(0)).wait()[0] == 0


def test_aio_await_outside_the_pool_says_so() -> None:
    with pytest.raises(RuntimeError, match="TaskPool"):
        aio_await(asyncio.sleep(0))


def test_jobs_and_the_tasks_they_start_reach_the_runner() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "the runner"

    pool = start_pool(lifespan)

    async def look() -> Any:
        return current_runner()

    async def body() -> list[Any]:
        return await asyncio.gather(look(), asyncio.create_task(look()))

    assert Call(pool, body).wait() == (0, ["the runner", "the runner"], 0.0)
    pool.stop()


def test_there_is_no_runner_and_nothing_to_leave_elsewhere() -> None:
    with pytest.raises(RuntimeError):
        current_runner()
    with pytest.raises(RuntimeError):
        leave(1)
    assert why_cancelled() is None


def test_leave_in_a_job_reaches_the_program() -> None:
    left: list[int] = []
    pool = TaskPool(1)
    pool.leave = left.append
    pool.start()

    async def body() -> None:
        leave(7)

    Call(pool, body).wait()
    assert left == [7]
    pool.stop()


def test_one_task_enters_the_lifespan_and_leaves_it_after_the_last_job() -> None:
    story: list[Any] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        story.append(("enter", asyncio.current_task()))
        yield
        story.append(("leave", asyncio.current_task()))

    pool = start_pool(lifespan)
    assert [word for word, _ in story] == ["enter"]

    async def body() -> None:
        try:
            await forever()
        finally:
            story.append(("job", None))

    Call(pool, body).started()
    pool.stop()
    assert [word for word, _ in story] == ["enter", "job", "leave"]
    assert story[0][1] is story[2][1]


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
    async def lifespan() -> AsyncIterator[None]:
        raise error
        yield

    with caplog.at_level(logging.INFO), pytest.raises(WorkerShutdown) as stop:
        start_pool(lifespan)
    assert stop.value.code == code
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("CRITICAL", line)]


def test_a_signal_while_the_lifespan_is_entered_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    entering, left = threading.Event(), threading.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entering.set()
        try:
            await forever()
            yield
        finally:
            left.set()

    threading.Thread(target=lambda: entering.wait() and monkeypatch.setattr(worker_state, "should_stop", 0)).start()
    with pytest.raises(WorkerShutdown) as stop:
        start_pool(lifespan)
    assert stop.value.code == 0
    assert left.is_set()


def test_a_drain_lets_jobs_end_in_their_grace_and_cancels_the_others() -> None:
    pool = start_pool(limit=2)
    go = asyncio.Event()
    long = Recorder()
    long.may_end.set()
    calls = [Call(pool, go.wait), Call(pool, long)]
    for call in calls:
        call.started()
    drain = asyncio.run_coroutine_threadsafe(pool.drain(30.0), pool._loop)
    until_sync(lambda: pool._jobs._closing)
    pool.call(go.set)
    assert calls[0].wait() == (0, True, 0.0)
    assert not calls[1].ended.is_set()
    pool.hurry()
    drain.result(10)
    assert calls[1].ignored
    assert long.reason is Cancelled.SHUTDOWN
    pool.stop()


def test_what_never_started_is_not_reported_when_the_pool_drains() -> None:
    """Celery then never acknowledges it, and the message goes back into the queue."""
    pool = start_pool(limit=1)
    running = Call(pool, forever).started()
    waiting = Call(pool, forever)
    drain = asyncio.run_coroutine_threadsafe(pool.drain(0.0), pool._loop)
    until_sync(lambda: pool._jobs._closing)
    late = Call(pool, forever)
    drain.result(10)
    assert running.ignored
    pool.stop()
    assert not waiting.ended.is_set() and waiting.pid is None
    assert not late.ended.is_set() and late.pid is None


def test_the_pool_stops_though_a_clean_up_does_not_end(quick_cleanup: None, caplog: pytest.LogCaptureFixture) -> None:
    pool = start_pool()
    body = Recorder()
    Call(pool, body, "resp_stuck").started()
    pool.stop()
    assert "left without their end: resp_stuck" in caplog.text


def test_the_pool_stops_though_the_lifespan_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "LEAVE_SECONDS", 0.1)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        await forever()

    start_pool(lifespan).stop()
    assert "did not stop within" in caplog.text


def test_an_errand_is_waited_for_when_the_pool_stops() -> None:
    pool = start_pool()
    done = threading.Event()

    async def errand() -> None:
        await asyncio.sleep(0.05)
        done.set()

    pool.errand(errand())
    pool.stop()
    assert done.is_set()


def test_an_errand_that_fails_is_logged(task_pool: TaskPool, caplog: pytest.LogCaptureFixture) -> None:
    async def errand() -> None:
        raise ValueError

    task_pool.errand(errand())
    until_sync(lambda: "an errand failed" in caplog.text)


class Request:
    """Celery's Request, as far as our own revoke needs it."""

    def __init__(self) -> None:
        self.pid = 0
        self.terminated = 0

    def on_accepted(self, pid: int, _at: float) -> None:
        self.pid = pid

    def on_success(self, _result: Any) -> None: ...

    def terminate(self, pool: TaskPool, signal: Any = None) -> None:
        self.terminated += 1
        pool.terminate_job(self.pid)


def test_our_revoke_terminates_every_job_of_the_id_once_by_way_of_celery(task_pool: TaskPool) -> None:
    requests = [Request() for _ in range(3)]
    for request, task_id in zip(requests, ["twice", "twice", "other"], strict=True):
        task_pool.on_apply(
            lambda: aio_await(forever()),
            callback=request.on_success,
            accept_callback=request.on_accepted,
            correlation_id=task_id,
        )
    until_sync(lambda: all(request.pid for request in requests))
    task_pool.revoke(["twice", "unknown"])
    until_sync(lambda: not task_pool.runs("twice"))
    task_pool.revoke(["twice"])
    assert task_pool.runs("other")
    assert [request.terminated for request in requests] == [1, 1, 0]


async def test_a_slot_that_comes_together_with_a_cancellation_is_not_lost() -> None:
    slots = Slots(1)

    async def hold() -> None:
        async with slots.one():
            await forever()

    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0)
    slots.resize(2)  # hands the second its slot ...
    second.cancel()  # ... and in the same turn it is cancelled
    await asyncio.wait([second])
    async with asyncio.timeout(10), slots.one():
        pass
    first.cancel()
    await asyncio.wait([first])
