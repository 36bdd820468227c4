"""A fast path for bursts: at most 32 requests begin in each turn of the event loop.

The plain way is no throttle at all. Then a whole burst is read, checked and routed before the first request of it
reaches Postgres, and running streams wait for that.
"""

from __future__ import annotations

import asyncio
from collections import deque

MAX_PER_TURN = 32


class Throttle:
    """Lets `max_per_turn` callers pass in each turn of the event loop, in the order in which they came."""

    def __init__(self, max_per_turn: int = MAX_PER_TURN) -> None:
        self._max_per_turn = max_per_turn
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if self._passed == 0:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._passed < self._max_per_turn:
            self._passed += 1
            return
        passing = asyncio.get_running_loop().create_future()
        self._waiting.append(passing)
        await passing

    def _next_turn(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < self._max_per_turn:
            if not (passing := self._waiting.popleft()).done():
                passing.set_result(None)
                self._passed += 1
        if self._passed:
            asyncio.get_running_loop().call_soon(self._next_turn)
