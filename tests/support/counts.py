"""A worker that counts the tokens of prompts: what Celery's remote control does for it, without Celery."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import redis.asyncio

from app.aio import BackgroundTasks
from app.queue.commands import Command, verify
from app.queue.publisher import TaskQueue
from app.store.database import Database
from app.store.keys import pubsub_key
from app.streaming.pubsub import PubSub
from config.settings import load_settings
from tests.support.worker import Worker, worker


@asynccontextmanager
async def counting(db: Database, pubsub: PubSub, url: str, **options: Any) -> AsyncIterator[Worker]:
    """A worker that counts what it is told to, and runs what a test runs. `options` are those of `worker`."""
    queue, background = TaskQueue(load_settings(REDIS_URL=url)), BackgroundTasks()
    async with (
        redis.asyncio.from_url(url) as client,
        client.pubsub() as commands,
        worker(db, pubsub, queue=queue, **options) as made,
    ):
        await commands.psubscribe("*.celery.pidbox")
        await commands.get_message(timeout=None)
        background.start(_obey(commands, made, await pubsub_key(db)(), background))
        try:
            yield made
        finally:
            await background.close(0)
            await queue.close()


async def _obey(commands: Any, made: Worker, key: bytes, background: BackgroundTasks) -> None:
    node = made.node
    while True:
        message = orjson.loads((await commands.get_message(timeout=None))["data"])
        asked = orjson.loads(base64.b64decode(message["body"]))
        if asked["method"] == Command.COUNT and asked["destination"] == [node]:
            signature = asked["arguments"].pop("signature")
            verify(key, Command.COUNT, asked["arguments"], signature, node)
            background.start(made.counter.count(**asked["arguments"]))


async def prompts(url: str) -> list[str]:
    """The keys of the prompts that wait in Redis."""
    async with redis.asyncio.from_url(url) as client:
        return [key.decode() for key in await client.keys("*#resp_*")]


async def counted(asking: asyncio.Task[Any]) -> int:
    """What the API answered, which has to be a count."""
    answer = await asking
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])
