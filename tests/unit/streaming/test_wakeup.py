"""A reader's wakeup: each wait ends by a wake or by its own timer."""

from __future__ import annotations

import asyncio

from app.streaming.subscription import Wakeup
from tests.support.waiting import PATIENCE_SECONDS

HOUR = 3600.0


async def test_a_wake_before_the_wait_is_kept_and_counts_once() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    wakeup.wake()
    await asyncio.wait_for(wakeup.wait(HOUR), PATIENCE_SECONDS)
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    assert not task.done()
    wakeup.wake()
    await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_wait_ends_by_itself() -> None:
    wakeup = Wakeup()
    for _ in range(3):
        await asyncio.wait_for(wakeup.wait(0.001), PATIENCE_SECONDS)


async def test_a_shorter_wait_after_a_longer_one_ends_in_its_own_time() -> None:
    wakeup = Wakeup()
    wakeup.wake()
    await wakeup.wait(HOUR)
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    wakeup.wake()
    await task
    await asyncio.wait_for(wakeup.wait(0.001), PATIENCE_SECONDS)


async def test_a_timer_set_for_an_earlier_wait_does_not_end_this_one() -> None:
    wakeup = Wakeup()
    first = asyncio.create_task(wakeup.wait(0.01))
    await asyncio.sleep(0)
    wakeup.wake()
    await first
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert not task.done()
    task.cancel()


async def test_a_cancelled_wait_leaves_the_wakeup_as_it_was() -> None:
    wakeup = Wakeup()
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    wakeup.wake()
    await asyncio.wait_for(wakeup.wait(HOUR), PATIENCE_SECONDS)
