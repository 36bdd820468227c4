"""What TaskPool owes to Celery and to the runner, without a broker: this module plays Celery's part."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import CapacityLimiter
from celery.exceptions import Ignore, WorkerShutdown
from celery.worker import state as worker_state

from config.settings import ConfigError
from tests.support.circles import no_collector
from tests.support.waiting import until, until_sync
from workers.celery_host import jobs, pool
from workers.celery_host.pool import StopWorker, TaskPool
from workers.celery_host.tasks import current_runner
from workers.generation.cancellation import Cancelled, why_cancelled

Body = Callable[[], Coroutine[Any, Any, Any]]


class Request:
    """Celery's Request, as far as the pool needs it; `body` is its task."""

    def __init__(self, pool: TaskPool, body: Body, task_id: str = "resp") -> None:
        self.id = task_id
        self.task = SimpleNamespace(run=body, throws=())
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.pid: int | None = None
        self.accepted_in = self.ended_in = ""
        self.result: Any = None
        self.ended = threading.Event()
        self.pool = pool
        self.terminated = 0
        # Celery's Request holds its job weakly, too.
        self.job = weakref.ref(
            pool.on_apply(
                tracer, (), {}, callback=self.on_success, accept_callback=self.on_accepted, correlation_id=task_id
            )
        )

    def on_accepted(self, pid: int, _at: float) -> None:
        self.accepted_in = threading.current_thread().name
        self.pid = pid

    def on_success(self, result: Any) -> None:
        self.ended_in = threading.current_thread().name
        self.result = result
        self.ended.set()

    def terminate(self, pool: TaskPool | None = None, signal: Any = None) -> None:
        self.terminated += 1
        self.pool.terminate_job(self.started().pid or 0, signal)

    def started(self) -> Request:
        until_sync(lambda: self.pid is not None)
        return self

    def wait(self) -> Any:
        assert self.ended.wait(10)
        return self.result

    @property
    def ignored(self) -> bool:
        return is_ignored(self.wait())

    @property
    def value(self) -> str:
        failed, value, seconds = self.wait()
        assert not failed and seconds >= 0.0
        assert isinstance(value, str)
        return value


def is_ignored(result: Any) -> bool:
    """Whether Celery forgets the request and tells nobody."""
    failed, info, _ = result
    return bool(failed) and isinstance(info.exception, Ignore)


def tracer(*_: Any) -> None:
    """What Celery would have the pool call."""
    raise AssertionError("the pool runs the task itself")


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

    assert Request(task_pool, body).value == "'value'"


def test_celery_is_called_back_on_the_loops_thread(task_pool: TaskPool) -> None:
    request = Request(task_pool, lambda: asyncio.sleep(0))
    request.wait()
    assert (request.accepted_in, request.ended_in) == ("longhaul-pool", "longhaul-pool")


def test_the_consumer_is_woken_when_a_job_ends(task_pool: TaskPool) -> None:
    class Hub:
        woken = threading.Event()

        def call_soon(self, function: Callable[[], object]) -> None:
            function()
            self.woken.set()

    task_pool.register_with_event_loop(Hub())
    Request(task_pool, lambda: asyncio.sleep(0))
    assert Hub.woken.wait(10)


def test_64_jobs_run_at_once_each_under_a_pid_of_its_own() -> None:
    pool = start_pool(limit=64)
    barrier: asyncio.Barrier | None = None

    async def body() -> None:
        nonlocal barrier
        barrier = barrier or asyncio.Barrier(64)
        await barrier.wait()

    requests = [Request(pool, body) for _ in range(64)]
    assert [request.wait()[0] for request in requests] == [0] * 64
    assert len({request.pid for request in requests}) == 64
    assert all(isinstance(request.pid, int) for request in requests)
    pool.stop()


def test_no_more_jobs_run_at_once_than_the_limit(task_pool: TaskPool) -> None:
    running = most = 0

    async def body() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    for request in [Request(task_pool, body) for _ in range(64)]:
        request.wait()
    assert most == 8


def test_a_waiting_job_is_kept_alive_by_the_pool_alone() -> None:
    pool = start_pool(limit=1)
    first = Request(pool, forever).started()
    ended = Request(pool, lambda: asyncio.sleep(0)).ended
    gc.collect()
    first.terminate()
    assert ended.wait(10)
    pool.stop()


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_ended_job_is_gone_without_the_garbage_collector(task_pool: TaskPool, cancelled: bool) -> None:
    with no_collector():
        request = Request(task_pool, forever if cancelled else lambda: asyncio.sleep(0))
        if cancelled:
            request.terminate()
        request.wait()
        until_sync(lambda: request.job() is None)


def test_a_reported_cancellation_is_gone_without_the_garbage_collector(task_pool: TaskPool) -> None:
    with no_collector():
        request = Request(task_pool, forever)
        request.terminate()
        error = weakref.ref(request.wait()[1].exception)
        request.result = None
        until_sync(lambda: error() is None)


def test_a_terminated_job_is_gone_only_after_its_clean_up(task_pool: TaskPool) -> None:
    body = Recorder()
    request = Request(task_pool, body)
    request.terminate()
    assert body.cleaning.wait(10)
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


def test_revoked_ids_are_cancelled_for_that_reason_and_others_for_shutdown(task_pool: TaskPool, revoked: Any) -> None:
    revoked.add("resp_1")
    bodies = Recorder(), Recorder()
    requests = [Request(task_pool, body, f"resp_{n}") for n, body in enumerate(bodies, 1)]
    for request, body in zip(requests, bodies, strict=True):
        body.may_end.set()
        request.terminate()
        request.wait()
    assert [body.reason for body in bodies] == [Cancelled.REVOKED, Cancelled.SHUTDOWN]


def test_a_second_reason_neither_replaces_the_first_nor_interrupts_the_clean_up(revoked: Any) -> None:
    pool = start_pool()
    revoked.add("resp")
    body = Recorder()
    request = Request(pool, body)
    request.terminate()
    assert body.cleaning.wait(10)
    request.terminate()
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until_sync(lambda: pool._jobs._draining)
    body.may_end.set()
    stopping.join(10)
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


def test_terminating_what_is_not_there_does_nothing(task_pool: TaskPool) -> None:
    request = Request(task_pool, lambda: asyncio.sleep(0))
    request.wait()
    task_pool.terminate_job(request.pid or 0)
    task_pool.terminate_job(12345)


def test_grow_lets_waiting_jobs_start_and_shrink_lets_running_ones_go_on() -> None:
    pool = start_pool(limit=1)
    requests = [Request(pool, forever).started(), Request(pool, forever)]
    assert requests[1].pid is None
    pool.grow()
    requests[1].started()
    pool.shrink()
    late = Request(pool, lambda: asyncio.sleep(0))
    requests[0].terminate()
    requests[0].wait()
    assert late.pid is None
    requests[1].terminate()
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


def test_jobs_and_the_tasks_they_start_reach_the_runner() -> None:
    @asynccontextmanager
    async def lifespan(_: StopWorker) -> AsyncIterator[str]:
        yield "the runner"

    pool = start_pool(lifespan)

    async def look() -> Any:
        return current_runner.get()

    async def body() -> list[Any]:
        return await asyncio.gather(look(), asyncio.create_task(look()))

    assert Request(pool, body).value == "['the runner', 'the runner']"
    pool.stop()


def test_outside_a_pool_there_is_no_runner_and_no_reason_of_a_cancellation() -> None:
    with pytest.raises(LookupError):
        current_runner.get()
    assert why_cancelled() is None


def test_the_lifespan_can_stop_the_worker() -> None:
    exit_codes: list[int] = []

    @asynccontextmanager
    async def lifespan(stop_worker: StopWorker) -> AsyncIterator[StopWorker]:
        yield stop_worker

    class Pool(TaskPool):
        pass

    Pool.lifespan = staticmethod(lifespan)
    pool = Pool(1)
    pool.stop_worker = exit_codes.append
    pool.start()

    async def body() -> None:
        current_runner.get()(7)

    Request(pool, body).wait()
    assert exit_codes == [7]
    pool.stop()


def test_one_task_enters_the_lifespan_and_leaves_it_after_the_last_job() -> None:
    story: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: StopWorker) -> AsyncIterator[None]:
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

    Request(pool, body).started()
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
    async def lifespan(_: StopWorker) -> AsyncIterator[None]:
        raise error
        yield

    with caplog.at_level(logging.INFO), pytest.raises(WorkerShutdown) as stop:
        start_pool(lifespan)
    assert stop.value.code == code
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("CRITICAL", line)]


def test_a_signal_while_the_lifespan_is_entered_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    entering, left = threading.Event(), threading.Event()

    @asynccontextmanager
    async def lifespan(_: StopWorker) -> AsyncIterator[None]:
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
    requests = [Request(pool, go.wait), Request(pool, long)]
    for request in requests:
        request.started()
    drain = asyncio.run_coroutine_threadsafe(pool.drain(30.0), pool._loop)
    until_sync(lambda: pool._jobs._draining)
    pool.call(go.set)
    assert requests[0].value == "True"
    assert not requests[1].ended.is_set()
    pool.end_grace()
    drain.result(10)
    assert requests[1].ignored
    assert long.reason is Cancelled.SHUTDOWN
    pool.stop()


def test_what_never_started_is_not_reported_when_the_pool_drains() -> None:
    """Celery then never acknowledges it, and the message goes back into the queue."""
    pool = start_pool(limit=1)
    running = Request(pool, forever).started()
    waiting = Request(pool, forever)
    drain = asyncio.run_coroutine_threadsafe(pool.drain(0.0), pool._loop)
    until_sync(lambda: pool._jobs._draining)
    late = Request(pool, forever)
    drain.result(10)
    assert running.ignored
    pool.stop()
    assert not waiting.ended.is_set() and waiting.pid is None
    assert not late.ended.is_set() and late.pid is None


def test_the_pool_stops_though_a_clean_up_does_not_end(quick_cleanup: None, caplog: pytest.LogCaptureFixture) -> None:
    pool = start_pool()
    body = Recorder()
    Request(pool, body, "resp_stuck").started()
    pool.stop()
    assert "did not end in time: resp_stuck" in caplog.text


def test_the_pool_stops_though_the_lifespan_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "LEAVE_SECONDS", 0.1)

    @asynccontextmanager
    async def lifespan(_: StopWorker) -> AsyncIterator[None]:
        yield
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


def test_background_work_that_fails_is_logged(task_pool: TaskPool, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError

    task_pool.run_in_background(work())
    until_sync(lambda: "a background task failed" in caplog.text)


def test_our_revoke_terminates_every_job_of_the_id_once_by_way_of_celery(task_pool: TaskPool) -> None:
    requests = [Request(task_pool, forever, task_id).started() for task_id in ("twice", "twice", "other")]
    task_pool.revoke(["twice", "unknown"])
    until_sync(lambda: not task_pool.runs("twice"))
    task_pool.revoke(["twice"])
    assert task_pool.runs("other")
    assert [request.terminated for request in requests] == [1, 1, 0]


async def test_a_slot_that_comes_together_with_a_cancellation_is_not_lost() -> None:
    """It would be for ever, and with it a part of the worker. The pool relies on anyio for this."""
    slots = CapacityLimiter(1)

    async def hold() -> None:
        async with slots:
            await forever()

    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0)
    slots.total_tokens = 2  # hands the second its slot ...
    second.cancel()  # ... and in the same turn it is cancelled
    await asyncio.wait([second])
    async with asyncio.timeout(10), slots:
        pass
    first.cancel()
    await asyncio.wait([first])
