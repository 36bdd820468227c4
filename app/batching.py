"""Group work into batches: everything submitted while one batch runs goes into the next batch.

There is no timer. A single item runs at once; under load batches grow larger, not more frequent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.aio import end_tasks

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Place(Generic[T, R]):
    """An item in line, and the future of its result."""

    item: T
    weight: int
    result: asyncio.Future[R]


async def _give_up(error: Exception) -> None:
    raise error


class Batcher(Generic[T, R]):
    """Calls `perform` with a batch of items, one batch at a time, and gives each caller the result of its item.

    A batch holds items up to a total weight of `max_items`; without `weight` every item weighs 1. A single item may
    weigh more: it runs alone. If a batch fails, each item is retried alone, so one bad item cannot fail the others.

    Errors of a type in `shared_errors` affect the whole batch and are not retried so. An error that `is_unclear` may
    be the fault of the item or of nobody: it is shared if every item fails alone. After a shared error the batcher
    awaits `recover(error)` and then repeats the batch, with what has come meanwhile. What `recover` raises, by default
    the error itself, is the result of the batch's items. For one event loop.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_items: int = 256,
        weight: Callable[[T], int] = lambda _: 1,
        shared_errors: tuple[type[Exception], ...] = (),
        is_unclear: Callable[[Exception], bool] = lambda _: False,
        recover: Callable[[Exception], Awaitable[None]] = _give_up,
    ) -> None:
        self._perform = perform
        self._max_items = max_items
        self._weight = weight
        self._shared_errors = shared_errors
        self._is_unclear = is_unclear
        self._recover = recover
        self._waiting: list[_Place[T, R]] = []
        self._closed = False
        self._worker: asyncio.Task[None] | None = None

    def submit(self, item: T) -> asyncio.Future[R]:
        """Adds `item` to the next batch and returns the future of its result, or of what `perform` raised for it.

        If the future is cancelled before its batch starts, the item is left out. After `close` it is cancelled at once.
        Raises what `weight` raises: then the item is not added.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        if self._closed:
            result.cancel()
            return result
        self._waiting.append(_Place(item, self._weight(item), result))
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work(), name="batches")
        return result

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self._waiting and (self._worker is None or self._worker.done())

    async def close(self) -> None:
        """Cancels the running batch and everything that waits."""
        self._closed = True
        for place in self._waiting:
            place.result.cancel()
        if self._worker is not None:
            await end_tasks(self._worker)

    async def _work(self) -> None:
        while self._waiting:
            if batch := self._next_batch():
                try:
                    await self._run(batch)
                except BaseException:  # this batcher is being closed, or the loop is
                    for place in batch:
                        place.result.cancel()
                    raise

    def _next_batch(self) -> list[_Place[T, R]]:
        """Takes the next batch from the line, and leaves out what was cancelled."""
        count = total = 0
        for place in self._waiting:
            total += place.weight
            if count and total > self._max_items:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return [place for place in batch if not place.result.done()]

    async def _run(self, batch: Sequence[_Place[T, R]]) -> None:
        try:
            results = await self._perform([place.item for place in batch])
        except self._shared_errors as error:
            await self._repeat(batch, error)
        except Exception as error:
            if len(batch) == 1:
                await self._blame([(batch[0], error)], others_succeeded=False)
            else:
                await self._run_each(batch)
        else:
            for place, value in zip(batch, results, strict=True):
                if not place.result.done():
                    place.result.set_result(value)

    async def _run_each(self, batch: Sequence[_Place[T, R]]) -> None:
        """Runs each item of a batch that has failed alone."""
        failed: list[tuple[_Place[T, R], Exception]] = []
        for number, place in enumerate(batch):
            try:
                (value,) = await self._perform([place.item])
            except self._shared_errors as error:
                await self._repeat([*(each for each, _ in failed), *batch[number:]], error)
                return
            except Exception as error:
                failed.append((place, error))
            else:
                if not place.result.done():
                    place.result.set_result(value)
        await self._blame(failed, others_succeeded=len(failed) < len(batch))

    async def _blame(self, failed: Sequence[tuple[_Place[T, R], Exception]], *, others_succeeded: bool) -> None:
        """Gives the items that failed alone their errors, unless the errors may be nobody's fault."""
        if not others_succeeded and all(self._is_unclear(error) for _, error in failed):
            await self._repeat([place for place, _ in failed], failed[-1][1])
            return
        for place, error in failed:
            if not place.result.done():
                place.result.set_exception(error)

    async def _repeat(self, batch: Sequence[_Place[T, R]], error: Exception) -> None:
        """Puts the batch back to the front of the line after `recover`."""
        try:
            await self._recover(error)
        except Exception as final:
            for place in batch:
                if not place.result.done():
                    place.result.set_exception(final)
        else:
            self._waiting[:0] = batch
