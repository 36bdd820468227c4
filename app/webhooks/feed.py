"""The event feed of a project: pages, and a stream that goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import partial

import orjson

from app.protocol.errors import InvalidRequest
from app.protocol.events import frames
from app.protocol.text import shortened
from app.responses.paging import Encoded, encoded_list
from app.store.database import Database, StoreUnavailable
from app.store.webhooks import events
from app.streaming.pubsub import ENDINGS, PubSub
from app.webhooks.objects import event_object

PAGE_EVENTS = 500
"""Most events of one read of a stream."""
POLL_SECONDS = 2.0
"""Pause between two looks without a ring, and the longest delay of an event that an earlier transaction holds up."""
PAUSE_SECONDS = 0.2
"""The shortest pause between two looks."""
BEGINNING = ""
_ID = re.compile(r"evt_[0-9a-f]{12}\w{0,28}", re.ASCII)


class EventFeed:
    """Reads the events of `kept_seconds`."""

    def __init__(self, db: Database, pubsub: PubSub, kept_seconds: float) -> None:
        self._db = db
        self._pubsub = pubsub
        self._read = partial(events.read, db, kept_seconds=kept_seconds)

    async def page(self, project: str, after: str, limit: int) -> Encoded:
        """Up to `limit` events behind the id `after`, the oldest first. Raises InvalidRequest and StoreUnavailable."""
        await self.check(after)
        rows = await self._read(project, after, limit + 1)
        listed = [(row.id, orjson.dumps(event_object(row))) for row in rows[:limit]]
        return encoded_list(listed, has_more=len(rows) > limit)

    async def check(self, after: str) -> None:
        """Raises InvalidRequest if no event can have this id, or none yet, and StoreUnavailable."""
        if after != BEGINNING and not (_ID.fullmatch(after) and await events.may_exist(self._db, after)):
            message = f"Invalid 'after': this database has had no event '{shortened(after)}'; begin without one."
            raise InvalidRequest(message, "after", "invalid_value")

    async def follow(self, project: str, after: str) -> AsyncGenerator[bytes, None]:
        """Frames of the events behind `after`, as they come; nothing at each look that finds none."""
        async with self._pubsub.listen(ENDINGS) as doorbell:
            while True:
                doorbell.clear_missed()
                try:
                    rows = await self._read(project, after, PAGE_EVENTS)
                except StoreUnavailable:
                    rows = []
                yield b"".join(b"id: %b\n%b" % (row.id.encode(), frames.encode(event_object(row))) for row in rows)
                if rows:
                    after = rows[-1].id
                else:
                    await doorbell.wait(POLL_SECONDS)
                    await asyncio.sleep(PAUSE_SECONDS)
