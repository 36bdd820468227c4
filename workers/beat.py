"""When the running responses of a worker speak: together, and the less often the more of them there are."""

from __future__ import annotations

import asyncio
import os

PER_STREAM = float(os.environ.get("LH_BEAT", "0.0004"))
MOST = 0.1


class Beat:
    def __init__(self) -> None:
        self._due = 0.0
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting and loop.time() >= self._due:
            self._due = loop.time() + PER_STREAM
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._release)
        await waiter

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        waiting, self._waiting = self._waiting, []
        self._due = loop.time() + min(MOST, PER_STREAM * len(waiting))
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
