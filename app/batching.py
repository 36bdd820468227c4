"""Group work into batches: everything submitted while one batch runs goes into the next batch.

There is no timer. A single item runs at once; under load batches grow larger, not more frequent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from app.aio import end_tasks

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Calls `perform` with a batch of items, one batch at a time, and gives each caller the result of its item.

    A batch holds items up to a total weight of `max_items`; without `weight` every item weighs 1. A single item may
    weigh more: it runs alone. If a batch fails, each item is retried alone, so one bad item cannot fail the others.
    Errors of a type in `shared_errors` affect the whole batch and are not retried. For one event loop.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        max_items: int = 256,
        weight: Callable[[T], int] = lambda _: 1,
        shared_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._perform = perform
        self._max_items = max_items
        self._weight = weight
        self._shared_errors = shared_errors
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._weights: list[int] = []
        """Of the waiting items: each is weighed once."""
        self._closed = False
        self._worker: asyncio.Task[None] | None = None

    def submit(self, item: T) -> asyncio.Future[R]:
        """Adds `item` to the next batch and returns the future of its result, or of what `perform` raised for it.

        If the future is cancelled before its batch starts, the item is left out. After `close` it is cancelled at once.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        if self._closed:
            result.cancel()
            return result
        self._waiting.append((item, result))
        self._weights.append(self._weight(item))
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
        for _, result in self._waiting:
            result.cancel()
        if self._worker is not None:
            await end_tasks(self._worker)

    async def _work(self) -> None:
        while self._waiting:
            count = self._next_batch_size()
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._weights = self._weights[count:]
            if wanted := [(item, result) for item, result in batch if not result.done()]:
                await self._run(wanted)

    def _next_batch_size(self) -> int:
        total = 0
        for count, weight in enumerate(self._weights):
            total += weight
            if count and total > self._max_items:
                return count
        return len(self._waiting)

    async def _run(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._perform([item for item, _ in batch])
        except Exception as error:
            await self._fail(batch, error)
        except BaseException:  # this batcher is being closed, or the loop is
            for _, result in batch:
                result.cancel()
            raise
        else:
            for (_, result), value in zip(batch, results, strict=True):
                if not result.done():
                    result.set_result(value)

    async def _fail(self, batch: Sequence[tuple[T, asyncio.Future[R]]], error: Exception) -> None:
        if len(batch) > 1 and not isinstance(error, self._shared_errors):
            try:
                for single in batch:
                    await self._run([single])
            except BaseException:  # this batcher is being closed, or the loop is: the rest of the batch must not wait
                for _, result in batch:
                    result.cancel()
                raise
            return
        for _, result in batch:
            if not result.done():
                result.set_exception(error)
