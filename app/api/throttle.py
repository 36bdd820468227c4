"""A burst of requests, a few at a time.

All that arrives at once would be read, checked and routed before the first of it is asked of Postgres, and before
anything else has its turn: streams that run, replies that have come. So in each turn of the event loop a few requests
begin, and what the first ones need is under way while the last ones wait.
"""

from __future__ import annotations

import asyncio
from collections import deque

FEW = 32


class Throttle:
    """Lets `few` through in each turn of the loop, in the order in which they came."""

    def __init__(self, few: int = FEW) -> None:
        self._few = few
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if self._passed == 0:
            asyncio.get_running_loop().call_soon(self._turn)
        if self._passed < self._few:
            self._passed += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self) -> None:
        self._passed = 0
        while self._waiting and self._passed < self._few:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                self._passed += 1
        if self._passed:
            asyncio.get_running_loop().call_soon(self._turn)
