"""A fast path: one timer that serves all the waits of one reader."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Wakes one waiting task.

    It replaces `asyncio.Event` under `asyncio.timeout`, which sets and cancels a timer for every chunk of every
    reader, at twice the CPU. Here a timer stays set, and each wait only moves its deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awake = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Ends the running wait, or else the next one."""
        self._awake = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Returns once `wake` was called since the last wait, or after `seconds`."""
        if not self._awake:
            self._set_timer(self._loop.time() + seconds)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._awake = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() >= self._deadline:
            self.wake()
        else:  # the timer was set for an earlier wait
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
