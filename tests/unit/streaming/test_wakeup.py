"""A reader's wakeup: one timer for many waits."""

from __future__ import annotations

import asyncio

from app.streaming.wakeup import Wakeup

HOUR = 3600.0


async def test_a_wake_before_the_wait_is_kept_and_counts_once() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    wakeup.wake()
    wakeup.wake()
    await asyncio.wait_for(wakeup.wait(HOUR), 5)
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    assert not task.done()
    wakeup.wake()
    await asyncio.wait_for(task, 5)
    wakeup.close()


async def test_a_wait_ends_by_itself() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    for _ in range(3):
        await asyncio.wait_for(wakeup.wait(0.001), 5)
    wakeup.close()


async def test_a_shorter_wait_after_a_longer_one_ends_in_its_own_time() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    wakeup.wake()
    await wakeup.wait(HOUR)
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    wakeup.wake()
    await task
    await asyncio.wait_for(wakeup.wait(0.001), 5)
    wakeup.close()


async def test_a_timer_set_for_an_earlier_wait_does_not_end_this_one() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    first = asyncio.create_task(wakeup.wait(0.01))
    await asyncio.sleep(0)
    wakeup.wake()
    await first
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    wakeup._on_timer()  # as the loop would, 0.01 s after the first wait began
    assert not task.done()
    task.cancel()
    wakeup.close()


async def test_a_cancelled_wait_leaves_the_wakeup_as_it_was() -> None:
    wakeup = Wakeup(asyncio.get_running_loop())
    task = asyncio.create_task(wakeup.wait(HOUR))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    wakeup.wake()
    await asyncio.wait_for(wakeup.wait(HOUR), 5)
    wakeup.close()
