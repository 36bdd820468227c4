"""run_to_completion: a cancellation does not interrupt the work. run_until: the work ends, even if it swallows one."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from app.aio import run_to_completion, run_until
from tests.support.cycles import no_collector
from tests.support.waiting import PATIENCE_SECONDS


class WentWrong(Exception):
    pass


async def test_a_cancelled_caller_still_gets_the_result() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await may_end.wait()
        return "done"

    task = asyncio.ensure_future(run_to_completion(work()))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    may_end.set()
    assert await task == "done"


async def test_an_error_of_the_work_is_freed_without_the_garbage_collector() -> None:
    async def work() -> None:
        raise WentWrong

    with no_collector():
        with pytest.raises(WentWrong) as caught:
            await run_to_completion(work())
        error = weakref.ref(caught.value)
        del caught
        assert error() is None


async def test_work_that_swallows_a_cancellation_is_cancelled_again() -> None:
    """As redis-py 8.1 does while it connects or sends."""
    swallowed = 0

    async def work() -> None:
        nonlocal swallowed
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed += 1
        await asyncio.Event().wait()

    assert await asyncio.wait_for(run_until(work(), asyncio.sleep(0)), PATIENCE_SECONDS) is False
    assert swallowed == 1
