"""The bell of a reader: one alarm for many waits."""

from __future__ import annotations

import asyncio

from app.streaming.pubsub import Wakeup

HOUR = 3600.0


async def test_a_ring_before_the_wait_is_not_lost_and_counts_once() -> None:
    bell = Wakeup(asyncio.get_running_loop())
    bell.ring()
    bell.ring()
    await asyncio.wait_for(bell.wait(HOUR), 5)
    task = asyncio.create_task(bell.wait(HOUR))
    await asyncio.sleep(0)
    assert not task.done()
    bell.ring()
    await asyncio.wait_for(task, 5)
    bell.close()


async def test_a_wait_ends_by_itself() -> None:
    bell = Wakeup(asyncio.get_running_loop())
    for _ in range(3):
        await asyncio.wait_for(bell.wait(0.001), 5)
    bell.close()


async def test_a_shorter_wait_behind_a_longer_one_ends_in_its_own_time() -> None:
    bell = Wakeup(asyncio.get_running_loop())
    bell.ring()
    await bell.wait(HOUR)
    task = asyncio.create_task(bell.wait(HOUR))
    await asyncio.sleep(0)
    bell.ring()
    await task
    await asyncio.wait_for(bell.wait(0.001), 5)
    bell.close()


async def test_an_alarm_that_was_for_an_earlier_wait_wakes_nobody() -> None:
    bell = Wakeup(asyncio.get_running_loop())
    first = asyncio.create_task(bell.wait(0.01))
    await asyncio.sleep(0)
    bell.ring()
    await first
    task = asyncio.create_task(bell.wait(HOUR))
    await asyncio.sleep(0)
    bell._on_alarm()  # as the loop would, 0.01 s after the first wait began
    assert not task.done()
    task.cancel()
    bell.close()


async def test_a_wait_that_is_cancelled_leaves_the_bell_as_it_was() -> None:
    bell = Wakeup(asyncio.get_running_loop())
    task = asyncio.create_task(bell.wait(HOUR))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    bell.ring()
    await asyncio.wait_for(bell.wait(HOUR), 5)
    bell.close()
