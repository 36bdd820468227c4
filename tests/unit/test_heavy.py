"""Heavy work: what leaves the event loop, in which threads, and what keeps its place after its caller left."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.bounds import Bound
from app.heavy import PROJECT, Threads, behind, off_loop
from app.sizes import LARGE_BYTES, MANY_ITEMS, item_count
from tests.support.waiting import until

ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
PARTS = {**ITEM, "content": ITEM["content"] * MANY_ITEMS}  # type: ignore[operator]


async def test_small_work_stays_on_the_event_loop() -> None:
    items = item_count([ITEM] * 10)
    assert await off_loop(threading.get_ident, LARGE_BYTES, items) == threading.get_ident()


@pytest.mark.parametrize(("size", "items"), [(LARGE_BYTES + 1, []), (0, [ITEM] * MANY_ITEMS), (0, [PARTS])])
async def test_many_bytes_or_items_or_parts_are_work_for_a_thread(size: int, items: list[dict[str, object]]) -> None:
    assert await off_loop(threading.get_ident, size, item_count(items)) != threading.get_ident()


async def test_large_work_that_takes_long_is_done_in_one_thread_and_leaves_threads_for_the_rest() -> None:
    go, running = threading.Event(), []

    def work() -> None:
        running.append(threading.current_thread().name)
        go.wait(10)

    blocked = [asyncio.ensure_future(off_loop(work, LARGE_BYTES + 1, slow=True)) for _ in range(3)]
    try:
        assert await off_loop(lambda: "others go on", LARGE_BYTES, slow=True) == "others go on"
        assert len(running) <= 1
    finally:
        go.set()
    await asyncio.gather(*blocked)
    assert len(set(running)) == 1


async def test_work_behind_a_bound_keeps_its_place_after_its_caller_left() -> None:
    bound, go, done = Bound("places", 1), asyncio.Event(), []

    async def work(name: str) -> str:
        await go.wait()
        done.append(name)
        return name

    left = asyncio.create_task(behind([bound], lambda: work("left")))
    waits = asyncio.create_task(behind([bound], lambda: work("waits")))
    gone = asyncio.create_task(behind([bound], lambda: work("gone")))
    await asyncio.sleep(0)
    left.cancel()
    gone.cancel()
    await asyncio.wait([left, gone])
    assert bound.held == 1
    assert not waits.done()
    go.set()
    assert await waits == "waits"
    assert done == ["left", "waits"]
    assert not bound.held


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


async def test_heavy_work_of_one_project_waits_for_one_turn_of_another() -> None:
    go, done, threads = threading.Event(), [], Threads("test")

    async def piece(project: str, number: int) -> None:
        PROJECT.set(project)
        await threads.run(lambda: (go.wait(10), done.append((project, number))))

    tasks = [asyncio.create_task(piece("red", number)) for number in range(5)]
    await until(lambda: threads.bound.held == 1, what="red's work")
    tasks.append(asyncio.create_task(piece("blue", 0)))
    await until(lambda: len(threads.bound._lines) == 2, what="blue in line")
    go.set()
    await asyncio.gather(*tasks)
    assert done.index(("blue", 0)) <= 2
