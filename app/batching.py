"""Work in batches: what is asked for while one batch is under way is the next one.

No timer: who asks alone is served at once, and load makes batches larger, not more frequent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from app.aio import end_tasks

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Calls `perform` with the items that gathered (`most` at a time), and gives each caller its result.

    With `weigh`, `most` is what a batch may weigh; one item may always go, whatever it weighs. An error of several is
    tried again item by item, so that a bad one takes no others with it, but for errors of the types `common`, which are
    everybody's. For the code of one event loop.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        most: int = 256,
        weigh: Callable[[T], int] = lambda _: 1,
        common: tuple[type[Exception], ...] = (),
    ) -> None:
        self._perform = perform
        self._most = most
        self._weigh = weigh
        self._common = common
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._working: asyncio.Task[None] | None = None

    async def do(self, item: T) -> R:
        """Its result. Raises what `perform` raises for it. An item whose caller left before its turn is not done."""
        return await self.start(item)

    def start(self, item: T) -> asyncio.Future[R]:
        """`do`, for who does not wait at once. Cancelled before its turn, it is not done."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, result))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="batches")
        return result

    async def close(self) -> None:
        """Cancels what is under way and all that waits."""
        for _, result in self._waiting:
            result.cancel()
        if self._working is not None:
            await end_tasks(self._working)

    async def _work(self) -> None:
        while self._waiting:
            count = self._fitting()
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            if wanted := [(item, result) for item, result in batch if not result.done()]:
                await self._try(wanted)

    def _fitting(self) -> int:
        """How many of those that wait go next."""
        weight = 0
        for count, (item, _) in enumerate(self._waiting):
            weight += self._weigh(item)
            if count and weight > self._most:
                return count
        return len(self._waiting)

    async def _try(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._perform([item for item, _ in batch])
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, self._common):
                for single in batch:
                    await self._try([single])
                return
            for _, result in batch:
                if not result.done():
                    result.set_exception(error)
        except BaseException:  # the loop is closing
            for _, result in batch:
                result.cancel()
            raise
        else:
            for (_, result), value in zip(batch, results, strict=True):
                if not result.done():
                    result.set_result(value)
