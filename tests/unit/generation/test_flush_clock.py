"""The flush clock: which responses wait for the next tick. An interval of an hour stands for "never"."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import PATIENCE_SECONDS
from workers.generation.writing import flush_clock as module
from workers.generation.writing.flush_clock import FlushClock

NEVER = 1 / 3600.0


@pytest.fixture(autouse=True)
def _unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 3600.0)


class Time:
    """The time of the event loop, which stands still but for what a test lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self._now)

    async def passes(self, seconds: float) -> None:
        self._now += seconds
        for _ in range(3):  # the tick, the futures that it sets, and the tasks that wait for them
            await asyncio.sleep(0)


async def waiting(clock: FlushClock, number: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(clock.wait()) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    ("configured", "on_cpu", "events"),
    [
        (None, True, module.ON_CPU_EVENTS_PER_SECOND),
        (None, False, module.EVENTS_PER_SECOND),
        (0.0, True, 0.0),
        (20.0, False, 20.0),
    ],
)
def test_an_engine_on_the_cpu_has_fewer_events_unless_the_operator_says_how_many(
    configured: float | None, on_cpu: bool, events: float
) -> None:
    assert module.bound(configured, on_cpu=on_cpu) == events


async def test_a_single_response_that_has_not_flushed_lately_does_not_wait_and_none_without_a_bound() -> None:
    await asyncio.wait_for(FlushClock(NEVER).wait(), PATIENCE_SECONDS)
    clock = FlushClock()
    for _ in range(3):
        await asyncio.wait_for(clock.wait(), PATIENCE_SECONDS)


async def test_a_response_that_is_alone_waits_for_the_longest_interval_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.01)
    clock = FlushClock(NEVER)
    for _ in range(3):
        await asyncio.wait_for(clock.wait(), PATIENCE_SECONDS)


async def test_a_response_that_has_just_flushed_waits() -> None:
    clock = FlushClock(NEVER)
    await clock.wait()
    (task,) = await waiting(clock, 1)
    assert not task.done()
    task.cancel()


async def test_all_waiting_responses_go_at_the_same_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    clock = FlushClock(NEVER)
    await clock.wait()
    tasks = await waiting(clock, 5)
    await time.passes(3599.0)
    assert not any(task.done() for task in tasks)
    await time.passes(1.0)
    assert all(task.done() for task in tasks)


async def test_a_cancelled_response_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)
    clock = FlushClock(NEVER)
    await clock.wait()
    gone, stays = await waiting(clock, 2)
    gone.cancel()
    await time.passes(3600.0)
    assert gone.cancelled() and stays.done()
    later = await waiting(clock, 3)
    await time.passes(3600.0)
    assert all(task.done() for task in later)


async def test_the_interval_grows_with_the_number_of_waiting_responses_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.1)
    time = Time(monkeypatch)
    clock = FlushClock(1000.0)
    await clock.wait()
    for number, seconds in ((1, 0.001), (50, 0.05), (500, module.MAX_SECONDS)):
        await waiting(clock, number)
        await time.passes(1.0)
        assert clock.interval == pytest.approx(seconds)
        (task,) = await waiting(clock, 1)
        await time.passes(0.9 * seconds)
        assert not task.done()
        await time.passes(0.2 * seconds)
        assert task.done()
    await time.passes(1.0)
    await asyncio.wait_for(clock.wait(), PATIENCE_SECONDS)
