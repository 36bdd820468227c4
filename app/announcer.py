"""Telling of a response that was ended from outside: its readers, and the worker that may run it."""

from __future__ import annotations

from prometheus_client import Counter

from app.aio import BackgroundTasks
from app.metrics.instruments import outside_endings
from app.queue.publisher import TaskQueue
from app.store.rows import EndResult
from app.streaming.pubsub import PubSub

CLOSE_SECONDS = 2.0
"""How long work in the background may take to its end, when its process ends."""


class Announcer:
    """Whoever is not told finds it in Postgres: so nothing here raises, and no caller has to wait."""

    def __init__(self, pubsub: PubSub, queue: TaskQueue, endings: Counter | None = None) -> None:
        self._endings = endings or outside_endings()
        self._pubsub = pubsub
        self._queue = queue
        self._notices = BackgroundTasks()

    def soon(self, result: EndResult) -> None:
        """`tell`, in the background."""
        self._notices.start(self.tell(result))

    async def tell(self, *results: EndResult) -> None:
        """Tells of those that the calls with these results have ended, once that is committed."""
        ended = [(result.row, result.chunk) for result in results if result.chunk is not None]
        if not ended:
            return
        for row, _ in ended:
            self._endings.labels(row.status.value).inc()
        await self._pubsub.publish([chunk for _, chunk in ended])
        # of others no worker has heard
        if known := [row.id for row, _ in ended if row.sent_at is not None or row.attempt]:
            await self._queue.revoke(*known)

    async def close(self) -> None:
        await self._notices.close(CLOSE_SECONDS)
