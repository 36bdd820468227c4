"""Batches for tests: their files, what carries them on, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import orjson

from app.access.directory import Directory
from app.announcer import Announcer
from app.batches.progress import BatchProgress
from app.dispatcher import Dispatcher
from app.files.documents import DocumentReader
from app.maintenance.__main__ import acceptor_of_lines
from app.responses.models.catalog import PermittedCatalogs
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.roles.rights import MAINTENANCE
from app.streaming.pubsub import PubSub
from tests.support.api import CATALOG, MODEL, Api
from tests.support.player import ids
from tests.support.waiting import until

RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"


class Carried:
    """What carries batches on, as maintenance does, until the block is left."""

    def __init__(self, progress: BatchProgress) -> None:
        self.progress = progress

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._repeat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.progress.close()

    async def _repeat(self) -> None:
        while True:
            await self.progress.advance()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def carrying(services: Any, api: Api, pubsub: PubSub) -> AsyncIterator[Carried]:
    """With the rights that maintenance has."""
    settings = api.runtime.settings
    db = Database(services.url_of(MAINTENANCE), 4)
    directory = Directory(db, pubsub)
    if settings.asks_for_keys:
        directory.start()
    queue = api.runtime.responses._creator._queue
    announcer = Announcer(pubsub, queue)
    documents = DocumentReader(settings.max_body_bytes, shares=False)
    dispatch = Dispatcher(db, queue).dispatch
    catalogs = PermittedCatalogs(CATALOG, directory if settings.asks_for_keys else None)
    acceptor = acceptor_of_lines(db, SharedSealer(db), catalogs, documents, settings)
    progress = BatchProgress(db, pubsub, announcer, acceptor, dispatch, settings)
    try:
        yield Carried(progress)
    finally:
        await announcer.close()
        await directory.close()
        await asyncio.to_thread(documents.close)
        await db.close()


def line(custom_id: str, endpoint: str = RESPONSES, **body: Any) -> bytes:
    asked = {"input": "Hello!"} if endpoint == RESPONSES else {"messages": [{"role": "user", "content": "Hello!"}]}
    sent = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": {"model": MODEL, **asked, **body}}
    return orjson.dumps(sent)


async def uploaded(client: openai.AsyncOpenAI, *lines: bytes, purpose: Any = "batch") -> str:
    made = await client.files.create(file=("batch.jsonl", b"\n".join(lines)), purpose=purpose)
    return made.id


async def created(client: openai.AsyncOpenAI, lines: Sequence[bytes], endpoint: Any = RESPONSES, **more: Any) -> Any:
    file = await uploaded(client, *lines)
    return await client.batches.create(input_file_id=file, endpoint=endpoint, completion_window="24h", **more)


async def ended(client: openai.AsyncOpenAI, batch_id: str, *statuses: str) -> Any:
    async def look() -> Any:
        batch = await client.batches.retrieve(batch_id, extra_query={} if statuses else {"wait": 60})
        return batch if batch.status in (statuses or ("completed", "failed", "expired", "cancelled")) else None

    return await until(look, what=f"the batch has ended, or is {statuses}")


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [orjson.loads(each) for each in (await client.files.content(file_id)).content.splitlines()]


async def has_responses(db: Database, count: int) -> bool:
    return len(await ids(db)) == count
