"""Telling of a response that was ended from outside: its readers, and the worker that may run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import prometheus_client

from app.aio import BackgroundTasks
from app.metrics.instruments import outside_endings
from app.queue.publisher import TaskQueue
from app.store.rows import EndResult, Notice
from app.streaming.pubsub import PubSub

CLOSE_SECONDS = 2.0
"""How long work in the background may take to its end, when its process ends."""


class Announcer:
    """Announces endings. A reader that misses an announcement finds the ending in Postgres: nothing here raises."""

    def __init__(self, pubsub: PubSub, queue: TaskQueue, endings: prometheus_client.Counter | None = None) -> None:
        self._endings = endings or outside_endings()
        self._pubsub = pubsub
        self._queue = queue
        self._notices = BackgroundTasks()

    def soon(self, result: EndResult) -> None:
        """`tell`, in the background."""
        self._notices.start(self.tell(result))

    async def tell(self, *results: EndResult) -> None:
        """Tells of those that the calls with these results have ended, once that is committed."""
        await self.tell_each([notice for result in results if (notice := result.notice) is not None])

    async def tell_each(self, notices: Sequence[Notice]) -> None:
        """`tell` of endings."""
        ends = [notice.response_id for notice in notices if not notice.is_followed]
        await self.tell_all(notices)
        await self._pubsub.tell_ends(*ends)

    async def tell_all(self, notices: Sequence[Notice]) -> None:
        """Tells of these many endings, once they are committed. If nobody may follow a response, those who wait for its
        end poll Postgres, and get no message."""
        for status, count in Counter(notice.status for notice in notices).items():
            self._endings.labels(status.value).inc(count)
        followed = [notice for notice in notices if notice.is_followed]
        await self._pubsub.publish([notice.chunk for notice in followed if notice.chunk is not None])
        await self._pubsub.tell_ends(*[notice.response_id for notice in followed if notice.chunk is None])
        # of others no worker has heard
        if known := [notice.response_id for notice in notices if notice.was_sent]:
            await self._queue.revoke(*known)

    async def close(self) -> None:
        await self._notices.close(CLOSE_SECONDS)
