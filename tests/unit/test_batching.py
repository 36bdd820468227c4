"""Batches: who waits with whom, and who shares whose errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.batching import Batcher


class Doubling:
    """Doubles numbers; a negative one is bad. Holds every batch until it is let go."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.go = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.seen.append(list(items))
        await self.go.wait()
        if min(items) < 0:
            raise ValueError("negative")
        return [2 * item for item in items]


async def gathered(batches: Batcher[int, int], first: int, *others: int) -> list[asyncio.Task[int]]:
    """`first` under way, and the others asked for meanwhile."""
    tasks = [asyncio.create_task(batches.do(first))]
    for _ in range(3):
        await asyncio.sleep(0)
    tasks += [asyncio.create_task(batches.do(other)) for other in others]
    await asyncio.sleep(0)
    return tasks


async def test_who_asks_alone_is_served_at_once_and_who_asks_meanwhile_together() -> None:
    double = Doubling()
    tasks = await gathered(Batcher(double), 1, 2, 3)
    assert double.seen == [[1]]
    double.go.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6]
    assert double.seen == [[1], [2, 3]]


async def test_a_batch_has_a_size() -> None:
    double = Doubling()
    double.go.set()
    batches = Batcher(double, most=2)
    assert await asyncio.gather(*(batches.do(number) for number in range(5))) == [0, 2, 4, 6, 8]
    assert double.seen == [[0, 1], [2, 3], [4]]


async def test_a_batch_has_a_weight_and_what_is_heavier_goes_alone() -> None:
    double = Doubling()
    double.go.set()
    batches = Batcher(double, most=5, weigh=lambda number: number)
    assert await asyncio.gather(*map(batches.do, (2, 3, 1, 9, 1, 4))) == [4, 6, 2, 18, 2, 8]
    assert double.seen == [[2, 3], [1], [9], [1, 4]]


async def test_a_bad_item_takes_no_others_with_it() -> None:
    double = Doubling()
    double.go.set()
    batches = Batcher(double)
    results = await asyncio.gather(*map(batches.do, (1, -2, 3)), return_exceptions=True)
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], ValueError)
    assert double.seen == [[1, -2, 3], [1], [-2], [3]]


async def test_an_error_that_is_everybodys_is_not_asked_for_again() -> None:
    double = Doubling()
    double.go.set()
    batches = Batcher(double, common=(ValueError,))
    results = await asyncio.gather(*map(batches.do, (1, -2)), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]
    assert double.seen == [[1, -2]]


async def test_an_item_whose_caller_left_is_not_done() -> None:
    double = Doubling()
    tasks = await gathered(Batcher(double), 1, 2, 3)
    tasks[1].cancel()
    double.go.set()
    assert await tasks[2] == 6
    assert double.seen == [[1], [3]]
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]


async def test_it_works_again_after_an_error() -> None:
    double = Doubling()
    double.go.set()
    batches = Batcher(double)
    with pytest.raises(ValueError, match="negative"):
        await batches.do(-1)
    assert await batches.do(1) == 2
