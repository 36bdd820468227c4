"""Work that nothing interrupts."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from app.aio import run_to_completion
from tests.support.circles import no_collector


class WentWrong(Exception):
    pass


async def test_who_is_cancelled_gets_the_result_all_the_same() -> None:
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


async def test_what_it_raised_is_gone_without_the_garbage_collector() -> None:
    async def work() -> None:
        raise WentWrong

    with no_collector():
        with pytest.raises(WentWrong) as caught:
            await run_to_completion(work())
        error = weakref.ref(caught.value)
        del caught
        assert error() is None
