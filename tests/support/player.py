"""A worker played by the test: it claims, and commits and publishes what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from sqlalchemy import text

from app.protocol.response import error_object
from app.store.database import Database, StoreLocked
from app.store.responses import logs
from app.store.responses.logs import Entry
from app.store.rows import Ending, ResponseRow
from app.streaming.pubsub import PubSub
from tests.support.rows import WORKER, Writer, claim
from tests.support.waiting import until


async def ids(db: Database, status: str | None = None) -> list[str]:
    """The ids of all responses, or of those with one status, oldest first."""
    rows = await db.execute(text("SELECT id, status FROM responses ORDER BY created_at"))
    return [row.id for row in rows if status in (None, row.status)]


async def one(db: Database, status: str | None = None) -> str:
    """The id of the only response; waits until there is one."""
    (found,) = await until(lambda: ids(db, status), what=f"a response, {status or 'any status'}")
    return found


class Play(Writer):
    """One claimed response."""

    def __init__(self, db: Database, pubsub: PubSub | None, row: ResponseRow) -> None:
        super().__init__(row)
        self._db = db
        self._pubsub = pubsub
        self.id = row.id

    async def write(self, entry: Entry) -> bool:
        """Commits and publishes; False if the entry was fenced. Tries again while its conversation is locked."""
        while True:
            try:
                appended = await logs.append(self._db, [entry])
                break
            except StoreLocked:
                await asyncio.sleep(0.01)
        if self._pubsub is not None and appended:
            await self._pubsub.publish([entry.chunk])
        return bool(appended)

    async def started(self) -> Play:
        await self.write(self.begin())
        return self

    async def said(self, *words: str) -> Play:
        for number, word in enumerate(words):
            await self.write(self.say(word, number))
        return self

    async def finished(self) -> None:
        await self.write(self.finish())

    async def failed(self, code: str, message: str) -> None:
        now = datetime.now(UTC)
        events = self.stream.fail(error_object(code, message))
        await self.write(self.entry(events, (), Ending.of(self.stream.response, now)))


class Player:
    """Claims responses for a test. Without pub/sub the readers poll Postgres."""

    def __init__(self, db: Database, pubsub: PubSub | None) -> None:
        self._db = db
        self._pubsub = pubsub

    async def take(self, response_id: str | None = None) -> Play:
        """Claims a response, and waits for it if none is given; commits nothing yet."""
        response_id = response_id or await one(self._db, "queued")
        row = await claim(self._db, response_id, WORKER)
        assert row is not None
        return Play(self._db, self._pubsub, row)

    async def begin(self, response_id: str | None = None) -> Play:
        return await (await self.take(response_id)).started()

    async def answer(self, *words: str, response_id: str | None = None) -> str:
        """Runs a response from its claim to its end; returns its id."""
        play = await self.begin(response_id)
        await (await play.said(*words)).finished()
        return play.id

    @asynccontextmanager
    async def at_work(self, *words: str) -> AsyncIterator[None]:
        """Answers every queued response, for the length of the block."""
        task = asyncio.create_task(self._work(words))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self, words: tuple[str, ...]) -> None:
        while True:
            queued = await until(lambda: ids(self._db, "queued"))
            for response_id in queued:
                await self.answer(*words, response_id=response_id)
