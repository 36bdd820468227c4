"""How many jobs may run at once; the limit moves while they run (Flower's grow and shrink buttons)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A fair semaphore with a limit that can change; for the code of one event loop.

    asyncio.Semaphore cannot shrink without a task that holds a slot for ever.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Holds a slot, waiting for it in the order of asking."""
        await self._take()
        try:
            yield
        finally:
            self._give()

    def resize(self, limit: int) -> None:
        """Jobs beyond a smaller limit run on; no new one starts until enough of them have ended."""
        self._limit = limit
        self._hand_out()

    async def _take(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._hand_out()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # a slot came in the same turn as the cancellation
                self._give()
            raise

    def _give(self) -> None:
        self._taken -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._taken < self._limit:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._taken += 1
                waiter.set_result(None)
