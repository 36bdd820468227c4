"""Group work into batches: everything submitted while one batch runs goes into the next batch.

There is no timer. A single item runs at once; under load batches grow larger, not more frequent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.aio import end_tasks
from app.heavy import PROJECT
from config.logging.context import of_nobody

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Place(Generic[T, R]):
    """An item in line, the project that it is of, and the future of its result."""

    item: T
    weight: int
    project: str | None
    result: asyncio.Future[R]
    failures: int = 0
    """How often it has failed alone."""


async def _give_up(error: Exception) -> None:
    raise error


class Batcher(Generic[T, R]):
    """Calls `perform` with a batch of items, one batch at a time, and gives each caller the result of its item.

    A batch holds items up to a total weight of `max_items`; without `weight` every item weighs 1. A single item may
    weigh more: it runs alone. If a batch fails, each item is retried alone, so one bad item cannot fail the others.
    A batch of several projects works for none of them (`PROJECT`).

    An item that has failed alone n times with an error is tried again, alone, after `again(error, n)` seconds; others
    go on meanwhile. None: the error is its result. Other errors of a type in `shared_errors` affect the whole batch and
    are not retried so: the batcher awaits `recover(error)` and then repeats the batch, with what has come meanwhile.
    What `recover` raises, by default the error itself, is the result of the batch's items. For one event loop.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_items: int = 256,
        weight: Callable[[T], int] = lambda _: 1,
        shared_errors: tuple[type[Exception], ...] = (),
        again: Callable[[Exception, int], float | None] = lambda *_: None,
        recover: Callable[[Exception], Awaitable[None]] = _give_up,
    ) -> None:
        self._perform = perform
        self._max_items = max_items
        self._weight = weight
        self._shared_errors = shared_errors
        self._again = again
        self._recover = recover
        self._waiting: list[_Place[T, R]] = []
        self._postponed: set[_Place[T, R]] = set()
        """The items that are tried again later."""
        self._closed = False
        self._worker: asyncio.Task[None] | None = None

    def submit(self, item: T) -> asyncio.Future[R]:
        """Adds `item` to the next batch and returns the future of its result, or of what `perform` raised for it.

        If the future is cancelled before its batch starts, the item is left out. After `close` it is cancelled at once.
        Raises what `weight` raises: then the item is not added.
        """
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._add(_Place(item, self._weight(item), PROJECT.get(), result))
        if self._closed:
            result.cancel()
        return result

    def _add(self, place: _Place[T, R]) -> None:
        self._postponed.discard(place)
        if self._closed:
            return
        self._waiting.append(place)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work(), name="batches", context=of_nobody())

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not (self._waiting or self._postponed) and (self._worker is None or self._worker.done())

    async def close(self) -> None:
        """Cancels the running batch and everything that waits."""
        self._closed = True
        for place in (*self._waiting, *self._postponed):
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
            if count and (total > self._max_items or place.failures):
                break
            count += 1
            if place.failures:
                break
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return [place for place in batch if not place.result.done()]

    async def _run(self, batch: Sequence[_Place[T, R]]) -> None:
        try:
            results = await self._perform_all(batch)
        except Exception as error:
            if self._is_shared(error):
                await self._repeat(batch, error)
            elif len(batch) == 1:
                self._blame(batch[0], error)
            else:
                await self._run_each(batch)
        else:
            for place, value in zip(batch, results, strict=True):
                if not place.result.done():
                    place.result.set_result(value)

    async def _perform_all(self, batch: Sequence[_Place[T, R]]) -> Sequence[R]:
        projects = {place.project for place in batch}
        PROJECT.set(projects.pop() if len(projects) == 1 else None)  # of the task of the batches alone
        return await self._perform([place.item for place in batch])

    async def _run_each(self, batch: Sequence[_Place[T, R]]) -> None:
        """Runs each item of a batch that has failed alone."""
        for number, place in enumerate(batch):
            try:
                (value,) = await self._perform_all([place])
            except Exception as error:
                if self._is_shared(error):
                    await self._repeat(batch[number:], error)
                    return
                self._blame(place, error)
            else:
                if not place.result.done():
                    place.result.set_result(value)

    def _is_shared(self, error: Exception) -> bool:
        return isinstance(error, self._shared_errors) and self._again(error, 1) is None

    def _blame(self, place: _Place[T, R], error: Exception) -> None:
        """Gives an item that failed alone its error, unless it is tried again."""
        place.failures += 1
        if place.result.done():
            return
        if (seconds := self._again(error, place.failures)) is None:
            place.result.set_exception(error)
        else:
            self._postponed.add(place)
            asyncio.get_running_loop().call_later(seconds, self._add, place)

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
