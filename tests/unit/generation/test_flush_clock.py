"""The beat: who waits for whom. (An hour means never, so that nothing here depends on a clock.)"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import until
from workers.generation import flush_clock as module
from workers.generation.flush_clock import FlushClock

NEVER = 1 / 3600.0


async def waiting(beat: FlushClock, number: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(beat.wait()) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks


async def test_who_is_alone_and_has_not_spoken_lately_does_not_wait() -> None:
    await asyncio.wait_for(FlushClock(NEVER).wait(), 5)


async def test_without_a_bound_nobody_waits() -> None:
    beat = FlushClock()
    for _ in range(3):
        await asyncio.wait_for(beat.wait(), 5)


async def test_who_has_just_spoken_waits() -> None:
    beat = FlushClock(NEVER)
    await beat.wait()
    (task,) = await waiting(beat, 1)
    assert not task.done()
    task.cancel()


async def test_all_that_wait_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 0.01)
    beat = FlushClock(NEVER)
    beat._due = asyncio.get_running_loop().time() + 0.01
    first, *others = await waiting(beat, 5)
    assert not first.done()
    first.add_done_callback(lambda _: seen.append(beat._waiting))
    seen: list[list[object]] = []
    await asyncio.gather(first, *others)
    assert seen == [[]]  # nobody was left behind when the first one went


async def test_the_beat_goes_on_without_those_that_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 0.01)
    beat = FlushClock(NEVER)
    beat._due = asyncio.get_running_loop().time() + 0.01
    gone, stays = await waiting(beat, 2)
    gone.cancel()
    await stays
    assert gone.cancelled()
    await asyncio.wait_for(asyncio.gather(*await waiting(beat, 3)), 5)


async def test_the_more_wait_the_later_is_the_next_beat_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = FlushClock(1000.0)
    for number, seconds in ((1, 0.001), (50, 0.05), (500, module.MOST_SECONDS)):
        beat._waiting = [asyncio.get_running_loop().create_future() for _ in range(number)]
        before = asyncio.get_running_loop().time()
        beat._strike()
        assert beat._due >= before + seconds
        assert beat._due <= asyncio.get_running_loop().time() + seconds
    await until(lambda: asyncio.get_running_loop().time() >= beat._due)
    await asyncio.wait_for(beat.wait(), 5)
