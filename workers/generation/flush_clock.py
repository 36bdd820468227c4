"""The beat of a worker: when its running responses take what the engine has for them, all at once.

A response that has spoken waits for the next beat before it asks the engine for more, and gets what came meanwhile as
one delta. The more responses run, the rarer the beat: a worker's events per second have a bound, not its tokens. And
since all speak together, they are parsed, committed, published and relayed together: what wakes a process (this one,
Postgres, Redis, the API) wakes it once per beat, not once per token.
"""

from __future__ import annotations

import asyncio

MOST_SECONDS = 0.1
"""Between two beats, however many responses run."""


class FlushClock:
    """`events_per_second` of all responses together; 0: no bound. For the code of one event loop."""

    def __init__(self, events_per_second: float = 0.0) -> None:
        self._seconds_each = 1.0 / events_per_second if events_per_second else 0.0
        self._due = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Until the next beat; not at all where nobody else waits and the last one is long enough ago."""
        if not self._seconds_each:
            return
        loop = asyncio.get_running_loop()
        if not self._waiting:
            now = loop.time()
            if now >= self._due:
                self._due = now + self._seconds_each
                return
            loop.call_at(self._due, self._strike)
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _strike(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._due = asyncio.get_running_loop().time() + min(MOST_SECONDS, self._seconds_each * len(waiting))
        for waiter in waiting:
            if not waiter.done():  # its response was cancelled meanwhile
                waiter.set_result(None)
