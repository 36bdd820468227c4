"""Batcher: which items share a batch, and which share its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.batching import Batcher
from app.heavy import PROJECT
from tests.support.waiting import until


class Doubling:
    """Doubles numbers, and refuses negative ones. Holds every batch until `go` is set."""

    def __init__(self, go: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        if go:
            self.go.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.go.wait()
        if min(items) < 0:
            raise ValueError("negative")
        return [2 * item for item in items]


async def gathered(batcher: Batcher[int, int], first: int, *others: int) -> list[asyncio.Future[int]]:
    """Submits `first`, and the others once the batch of the first is running."""
    futures = [batcher.submit(first)]
    for _ in range(3):
        await asyncio.sleep(0)
    return futures + [batcher.submit(other) for other in others]


async def test_a_single_item_runs_at_once_and_later_ones_run_together() -> None:
    double = Doubling()
    futures = await gathered(Batcher(double), 1, 2, 3)
    assert double.batches == [[1]]
    double.go.set()
    assert await asyncio.gather(*futures) == [2, 4, 6]
    assert double.batches == [[1], [2, 3]]


async def test_a_batch_has_a_maximum_size() -> None:
    double = Doubling(go=True)
    batcher = Batcher(double, max_items=2)
    assert await asyncio.gather(*map(batcher.submit, range(5))) == [0, 2, 4, 6, 8]
    assert double.batches == [[0, 1], [2, 3], [4]]


async def test_a_batch_has_a_maximum_weight_and_a_heavier_item_runs_alone() -> None:
    double = Doubling(go=True)
    batcher = Batcher(double, max_items=5, weight=lambda number: number)
    assert await asyncio.gather(*map(batcher.submit, (2, 3, 1, 9, 1, 4))) == [4, 6, 2, 18, 2, 8]
    assert double.batches == [[2, 3], [1], [9], [1, 4]]


async def test_a_bad_item_does_not_fail_the_others_of_its_batch() -> None:
    double = Doubling(go=True)
    batcher = Batcher(double)
    results = await asyncio.gather(*map(batcher.submit, (1, -2, 3)), return_exceptions=True)
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], ValueError)
    assert double.batches == [[1, -2, 3], [1], [-2], [3]]


async def test_a_shared_error_fails_the_whole_batch_without_a_retry() -> None:
    double = Doubling(go=True)
    batcher = Batcher(double, shared_errors=(ValueError,))
    results = await asyncio.gather(*map(batcher.submit, (1, -2)), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]
    assert double.batches == [[1, -2]]


async def test_an_item_that_is_cancelled_before_its_batch_starts_is_left_out() -> None:
    double = Doubling()
    futures = await gathered(Batcher(double), 1, 2, 3)
    futures[1].cancel()
    double.go.set()
    assert await futures[2] == 6
    assert double.batches == [[1], [3]]
    with pytest.raises(asyncio.CancelledError):
        await futures[1]


async def test_close_cancels_the_running_batch_and_the_waiting_items() -> None:
    double = Doubling()
    batcher = Batcher(double)
    futures = await gathered(batcher, 1, 2)
    await batcher.close()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    assert double.batches == [[1]]


async def test_close_cancels_every_item_of_a_batch_that_is_retried_one_by_one() -> None:
    retried = asyncio.Event()

    async def perform(items: Sequence[int]) -> list[int]:
        if len(items) > 1:
            raise ValueError("a bad batch")
        retried.set()
        await asyncio.Event().wait()
        return list(items)

    batcher = Batcher(perform)
    futures = [batcher.submit(number) for number in (1, 2, 3)]
    await retried.wait()
    await batcher.close()
    assert [future.cancelled() for future in futures] == [True, True, True]


async def test_a_closed_batcher_cancels_what_is_submitted() -> None:
    double = Doubling(go=True)
    batcher = Batcher(double)
    await batcher.close()
    assert batcher.submit(1).cancelled()
    assert double.batches == []


async def test_an_item_that_cannot_be_weighed_is_refused_and_the_others_go_on() -> None:
    def weigh(number: int) -> int:
        if number < 0:
            raise ValueError("no weight")
        return number

    double = Doubling()
    batcher = Batcher(double, max_items=5, weight=weigh)
    first, second = await gathered(batcher, 1, 2)
    with pytest.raises(ValueError, match="no weight"):
        batcher.submit(-1)
    third = batcher.submit(4)
    double.go.set()
    assert await asyncio.gather(first, second, third) == [2, 4, 8]
    assert double.batches == [[1], [2], [4]]


LAST_TRY = 4


class Away(Exception):
    """Everybody's error."""


class Service:
    """Fails what `errors` says of a number, and a batch with the first of its errors; counts how often it was away."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        self.errors = errors
        self.batches: list[list[int]] = []
        self.recoveries: list[Exception] = []
        self.back = asyncio.Event()
        self.batcher = Batcher(self, shared_errors=(Away,), again=self.again, recover=self.recover)

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        for item in items:
            if item in self.errors:
                raise self.errors[item]
        return list(items)

    def again(self, error: Exception, failures: int) -> float | None:
        return 0.0 if isinstance(error, LookupError) and failures < LAST_TRY else None

    async def recover(self, error: Exception) -> None:
        self.recoveries.append(error)
        await self.back.wait()


async def test_after_a_shared_error_the_batch_is_repeated_with_what_has_come_meanwhile() -> None:
    service = Service({1: Away()})
    futures = await gathered(service.batcher, 1, 2)
    service.errors.clear()
    service.back.set()
    assert await asyncio.gather(*futures) == [1, 2]
    assert service.batches == [[1], [1, 2]]


async def test_items_get_the_error_with_which_the_wait_for_a_repetition_ends() -> None:
    async def give_up(error: Exception) -> None:
        raise TimeoutError from error

    service = Service({1: Away()})
    service.recover = give_up  # type: ignore[method-assign]
    service.batcher = Batcher(service, shared_errors=(Away,), recover=service.recover)
    with pytest.raises(TimeoutError):
        await service.batcher.submit(1)
    assert await service.batcher.submit(2) == 2


async def test_an_item_that_fails_alone_is_tried_again_later_and_the_others_go_on() -> None:
    service = Service({2: LookupError("2")})
    futures = [service.batcher.submit(number) for number in (1, 2, 3)]
    assert await asyncio.gather(futures[0], futures[2]) == [1, 3]
    assert not service.batcher.is_idle
    assert await service.batcher.submit(4) == 4
    await until(lambda: service.batches.count([2]) > 1)
    service.errors.clear()
    assert await futures[1] == 2
    assert service.batches[:4] == [[1, 2, 3], [1], [2], [3]] and [4] in service.batches
    assert service.recoveries == []
    assert service.batcher.is_idle


async def test_an_item_gets_its_error_after_its_last_try() -> None:
    service = Service({1: LookupError("1")})
    with pytest.raises(LookupError):
        await service.batcher.submit(1)
    assert service.batches == [[1]] * LAST_TRY


async def test_what_is_tried_again_is_no_shared_error() -> None:
    service = Service({1: LookupError("1")})
    service.batcher = Batcher(service, shared_errors=(Exception,), again=service.again, recover=service.recover)
    futures = [service.batcher.submit(number) for number in (1, 2)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(results[0], LookupError) and results[1] == 2
    assert service.recoveries == []


async def test_a_shared_error_between_items_that_are_tried_alone_costs_one_wait_for_all_of_them() -> None:
    service = Service({1: ValueError("bad"), 2: Away(), 3: Away()})
    futures = [service.batcher.submit(number) for number in (0, 1, 2, 3)]
    await until(lambda: service.recoveries)
    del service.errors[2], service.errors[3]
    service.back.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [results[0], *results[2:]] == [0, 2, 3]
    assert isinstance(results[1], ValueError)
    assert len(service.recoveries) == 1
    assert service.batches == [[0, 1, 2, 3], [0], [1], [2], [2, 3]]


async def test_a_batch_works_for_the_project_that_its_items_have_in_common() -> None:
    worked_for: list[str | None] = []
    go = asyncio.Event()

    async def perform(items: Sequence[str]) -> Sequence[str]:
        worked_for.append(PROJECT.get())
        await go.wait()
        return items

    batcher: Batcher[str, str] = Batcher(perform, max_items=2)

    async def submit(project: str) -> None:
        PROJECT.set(project)
        await batcher.submit(project)

    tasks = [asyncio.create_task(submit(project)) for project in ("a", "a", "b", "b", "b", "c")]
    await until(lambda: len(worked_for) == 1)
    go.set()
    await asyncio.gather(*tasks)
    assert worked_for == ["a", "b", None]
    assert PROJECT.get() is None
