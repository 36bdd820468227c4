"""run_to_completion: a cancellation does not interrupt the work. run_until: the work ends, even if it swallows one."""

from __future__ import annotations

import asyncio
import contextlib
import weakref

import pytest

from app.aio import BackgroundTasks, Turns, run_to_completion, run_until
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


async def swallowing() -> None:
    """As redis-py 8.1 does while it connects or sends."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


async def test_work_that_swallows_a_cancellation_is_cancelled_again() -> None:
    assert await asyncio.wait_for(run_until(swallowing(), asyncio.sleep(0)), PATIENCE_SECONDS) is False


async def test_so_is_work_in_the_background() -> None:
    background = BackgroundTasks()
    task = background.start(swallowing())
    closing = asyncio.create_task(background.close(0))
    done, _ = await asyncio.wait([closing], timeout=PATIENCE_SECONDS)
    assert done and closing.result() == 1
    assert task.cancelled()


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("is_done", [False, True])
async def test_it_returns_after_the_work_however_often_it_is_cancelled(cancels: int, is_done: bool) -> None:
    """`is_done`: the signal is, so the work is being ended when the first cancellation comes."""
    working, ending, may_end, signal = (asyncio.Event() for _ in range(4))
    has_ended = False

    async def work() -> None:
        nonlocal has_ended
        working.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()
            has_ended = True

    running = asyncio.create_task(run_until(work(), signal.wait()))
    await working.wait()
    if is_done:
        signal.set()
        await ending.wait()
    for _ in range(cancels):
        running.cancel()
        await ending.wait()
        await asyncio.sleep(0)
    has_returned = running.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert has_ended and not has_returned


async def test_whatever_else_is_ready_goes_between_two_turns() -> None:
    woken, turns, others = asyncio.Event(), Turns(), 0
    seen: list[int] = []

    async def waiting() -> None:
        await woken.wait()
        await turns.take("proj_a")
        seen.append(others)

    async def other() -> None:
        nonlocal others
        while len(seen) < 100:
            others += 1
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(waiting()) for _ in range(100)]
    await asyncio.sleep(0)
    woken.set()
    await asyncio.gather(other(), *tasks)
    assert len(set(seen)) == 100


async def test_a_project_waits_for_no_other_and_for_none_of_its_own_that_were_cancelled() -> None:
    turns, order = Turns(), list[str]()

    async def piece(project: str) -> None:
        await turns.take(project)
        order.append(project)

    crowd = [asyncio.create_task(piece("a")) for _ in range(100)]
    others = [asyncio.create_task(piece(project)) for project in "bc"]
    await asyncio.sleep(0)
    for task in crowd[1:50]:
        task.cancel()
    await asyncio.gather(*crowd, *others, return_exceptions=True)
    assert order == ["a", "b", "c", *["a"] * 50]
    await asyncio.sleep(0)
    assert not turns._lines
