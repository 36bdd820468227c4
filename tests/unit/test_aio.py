"""run_to_completion: a cancellation does not interrupt the work. Threads, behind: it keeps its place."""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest

from app.aio import Threads, behind, run_to_completion
from tests.support.cycles import no_collector
from tests.support.waiting import until


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


async def test_work_behind_a_gate_keeps_its_place_after_its_caller_left() -> None:
    gate, go, done = asyncio.Semaphore(1), asyncio.Event(), []

    async def work(name: str) -> str:
        await go.wait()
        done.append(name)
        return name

    left = asyncio.create_task(behind([gate], lambda: work("left")))
    waits = asyncio.create_task(behind([gate], lambda: work("waits")))
    gone = asyncio.create_task(behind([gate], lambda: work("gone")))
    await asyncio.sleep(0)
    left.cancel()
    gone.cancel()
    await asyncio.wait([left, gone])
    assert gate.locked()
    assert not waits.done()
    go.set()
    assert await waits == "waits"
    assert done == ["left", "waits"]
    assert not gate.locked()


async def test_an_error_behind_a_gate_leaves_the_gate_open() -> None:
    async def fail() -> None:
        raise ValueError

    gate = asyncio.Semaphore(1)
    with pytest.raises(ValueError):
        await behind([gate], fail)
    assert not gate.locked()


async def test_heavy_work_runs_beside_the_loop_and_two_pieces_at_a_time() -> None:
    running: set[int] = set()
    most, let_go, threads = [0], threading.Event(), Threads("test", 2)

    def work() -> int:
        running.add(thread := threading.get_ident())
        most[0] = max(most[0], len(running))
        let_go.wait(10)
        running.discard(thread)
        return thread

    tasks = [asyncio.create_task(threads.run(work)) for _ in range(5)]
    await until(lambda: len(running) == 2, what="two threads at work")
    let_go.set()
    found = await asyncio.gather(*tasks)
    assert most == [2]
    assert threading.get_ident() not in found


async def test_heavy_work_keeps_its_thread_after_its_caller_left() -> None:
    begun, let_go, threads = threading.Event(), threading.Event(), Threads("test")

    def work() -> None:
        begun.set()
        let_go.wait(10)

    left = asyncio.create_task(threads.run(work))
    await until(begun.is_set, what="the work")
    waits = asyncio.create_task(threads.run(lambda: let_go.is_set()))
    left.cancel()
    await asyncio.wait([left])
    assert not waits.done()
    let_go.set()
    assert await waits
