"""A burst passes in turns of the loop, in its order, and what else is to be done gets its turn in between."""

from __future__ import annotations

import asyncio

from app.api.throttle import Throttle


async def test_a_burst_passes_a_few_in_each_turn_in_its_order() -> None:
    throttle, passed, seen = Throttle(max_per_turn=2), list[int](), list[int]()

    async def request(number: int) -> None:
        await throttle.enter()
        passed.append(number)

    requests = [asyncio.create_task(request(number)) for number in range(7)]
    while len(passed) < 7:
        await asyncio.sleep(0)
        seen.append(len(passed))
    await asyncio.gather(*requests)
    assert passed == list(range(7))
    assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) == 2


async def test_who_comes_alone_does_not_wait() -> None:
    throttle = Throttle(max_per_turn=1)
    for _ in range(3):
        entering = throttle.enter()
        try:
            entering.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        await asyncio.sleep(0)


async def test_who_leaves_in_the_queue_holds_nobody_up() -> None:
    throttle = Throttle(max_per_turn=1)
    waiting = [asyncio.create_task(throttle.enter()) for _ in range(5)]
    await asyncio.sleep(0)
    for leaving in waiting[1:4]:
        leaving.cancel()
    await asyncio.wait_for(waiting[4], 10)
    await asyncio.wait_for(throttle.enter(), 10)


async def test_it_rests_when_nobody_comes() -> None:
    throttle = Throttle()
    await throttle.enter()
    for _ in range(3):
        await asyncio.sleep(0)
    assert throttle._passed == 0
