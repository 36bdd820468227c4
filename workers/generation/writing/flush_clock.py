"""The flush clock of a worker: all running responses flush together, and the interval grows with their number.

A response that has flushed waits for the next tick before it asks the engine for more, and gets everything generated
meanwhile as one delta. This bounds the worker's events per second, not its tokens. Flushing together also means that
Postgres, Redis and the API wake up once per tick, not once per token.
"""

from __future__ import annotations

import asyncio

MAX_SECONDS = 0.1
"""The longest interval between two ticks, however many responses run."""
EVENTS_PER_SECOND = 4000.0
"""The default of a worker whose engine has an accelerator. So many events take a quarter of a core of the worker. With
twice as many, a few streams of a very fast engine delayed those of others (docs/internals/decisions/journal.md)."""
ON_CPU_EVENTS_PER_SECOND = 750.0
"""The default of a worker whose engine computes on the CPU: each event takes CPU time from the engine."""


def bound(configured: float | None, *, on_cpu: bool) -> float:
    """The most events per second of a worker: what the operator has configured, or the default for its engine."""
    if configured is not None:
        return configured
    return ON_CPU_EVENTS_PER_SECOND if on_cpu else EVENTS_PER_SECOND


class FlushClock:
    """`events_per_second` bounds the events of all responses together; 0: no bound. For one event loop."""

    def __init__(self, events_per_second: float = 0.0) -> None:
        self._seconds_per_event = min(MAX_SECONDS, 1.0 / events_per_second) if events_per_second else 0.0
        self._due = 0.0
        self._interval = 0.0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def interval(self) -> float:
        """Seconds between the two ticks around now: no response flushes more often."""
        return self._interval

    async def wait(self) -> None:
        """Returns at the next tick; at once if nobody else waits and the interval since the last tick is over."""
        if not self._seconds_per_event:
            return
        loop = asyncio.get_running_loop()
        if not self._waiting:
            now = loop.time()
            if now >= self._due:
                self._begin(now, 1)
                return
            loop.call_at(self._due, self._tick)
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _tick(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._begin(asyncio.get_running_loop().time(), len(waiting))
        for waiter in waiting:
            if not waiter.done():  # the response was cancelled
                waiter.set_result(None)

    def _begin(self, now: float, flushes: int) -> None:
        self._interval = min(MAX_SECONDS, self._seconds_per_event * flushes)
        self._due = now + self._interval
