"""The task queue: sending messages of responses to workers, and revoking them.

A message says "look at response X", nothing more. Postgres is the truth: maintenance sends a lost message again, and
the claim drops a duplicate. So nothing here waits long, and a request does not fail because its message was not sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

from app.batching import Batcher
from app.protocol.text import one_line
from app.queue.celery_app import make_celery
from app.queue.message import Message
from app.queue.message_template import MessageTemplates
from app.queue.redis_client import make_client, run_script, try_twice
from config.settings import Settings

log = logging.getLogger("longhaul.queue")

T = TypeVar("T")

SEND_SECONDS = 5.0
"""How long a caller waits for Redis, at most."""
MAX_BATCH = 200
"""Messages of one write; messages that were enqueued together stay together."""
MAX_REVOKED = 200
"""Ids of one broadcast: Celery logs them in one line."""
MARK = "longhaul.sent:"
"""With the name of a queue: a key that says that Redis has kept what was dispatched from it."""
THREADS = 1
"""For revokes, which go through Celery and block."""

_SEND = """
for i, list in ipairs(KEYS) do
    redis.call('LPUSH', list, ARGV[3 * i - 2])
    redis.call('PUBLISH', ARGV[3 * i], ARGV[3 * i - 1])
end
"""


class QueueUnavailable(Exception):
    """Redis did not take the message in time. It may have arrived all the same."""


class TaskQueue:
    """Sends from an event loop. Messages that arrive while a batch is being sent go together in the next one.

    A batch of messages is one write to Redis, from templates. Revokes go through Celery, from a thread.
    """

    def __init__(self, settings: Settings, seconds: float = SEND_SECONDS) -> None:
        """Connects to nothing. Raises ConfigError if REDIS_URL is unset."""
        self._celery = make_celery(settings)
        self._seconds = seconds
        self._client = make_client(settings.broker_url)
        self._templates = MessageTemplates(self._celery)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="longhaul-queue")
        self._messages = Batcher(self._send, max_items=MAX_BATCH, weight=len, shared_errors=(QueueUnavailable,))
        self._revokes = Batcher(self._broadcast_revoke, max_items=MAX_REVOKED, weight=len)

    async def enqueue(self, *messages: Message) -> None:
        """Sends the messages of committed responses together, even if the caller is cancelled meanwhile.

        Raises QueueUnavailable within SEND_SECONDS: then none, some or all of them may have arrived.
        """
        sent = self._messages.submit(messages)
        sent.add_done_callback(_retrieve_error)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(sent)
        except TimeoutError:
            sent.cancel()  # if its batch has not begun, it is not sent
            raise self._no_answer() from None

    async def head(self, list_: str) -> str | None:
        """The task id of the message that a worker takes next from this list; None if it is empty.

        Raises QueueUnavailable within SEND_SECONDS.
        """
        # kombu pushes on the left and takes from the right (kombu 5.7, transport/redis.py).
        message = await self._command(lambda: self._client.lindex(list_, -1))
        return None if message is None else str(json.loads(message)["headers"]["id"])

    async def is_marked(self, queue: str) -> bool:
        """Whether Redis has this queue's mark. If not, it has lost all keys since `mark`, and all messages with them.

        Raises QueueUnavailable.
        """
        return await self._command(lambda: self._client.exists(f"{MARK}{queue}")) > 0

    async def mark(self, queue: str) -> None:
        """Sets the queue's mark. Raises QueueUnavailable."""
        await self._command(lambda: self._client.set(f"{MARK}{queue}", "1"))

    async def revoke(self, *response_ids: str) -> None:
        """Notifies the workers of committed cancellations. Never raises: the fence stops a worker as well."""
        await self._revokes.submit(response_ids)

    async def close(self) -> None:
        """Drops what was not sent yet. Celery's connections stay: kombu shares them within a process, per URL."""
        await self._revokes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._messages.close()
        await self._client.aclose()

    async def _send(self, batch: Sequence[Sequence[Message]]) -> Sequence[None]:
        messages = list(chain.from_iterable(batch))
        try:
            await self._send_messages(messages)
        except QueueUnavailable as error:
            log.warning("%d message(s) were not sent (%s); maintenance sends them again", len(messages), error)
            raise
        return [None] * len(batch)

    async def _send_messages(self, messages: Sequence[Message]) -> None:
        lists, values = [each.list for each in messages], list[str | bytes]()
        for message in messages:
            template = self._templates.of(message.list)
            values += (*template.filled(message), template.channel)
        await self._command(lambda: run_script(self._client, _SEND, lists, *values))

    async def _command(self, command: Callable[[], Awaitable[T]]) -> T:
        try:
            return await try_twice(command)
        except Exception as error:  # of redis-py, asyncio, the system or uvloop: in each case Redis is away
            raise QueueUnavailable(one_line(error)) from error

    async def _broadcast_revoke(self, batch: Sequence[Sequence[str]]) -> Sequence[None]:
        # A broadcast costs every worker the same, whether it names one id or hundreds.
        ids = list(chain.from_iterable(batch))
        try:
            await self._in_thread(lambda: self._celery.control.revoke(ids, terminate=True))
        except QueueUnavailable as error:
            log.warning("workers were not notified of %d cancelled response(s): %s", len(ids), error)
        return [None] * len(batch)

    async def _in_thread(self, work: Callable[[], object]) -> None:
        """Raises QueueUnavailable. The thread may wait for a dead Redis a little longer than the caller does."""
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise self._no_answer() from None
        except Exception as error:  # kombu wraps errors of redis-py, sockets and DNS: in each case Redis is away
            raise QueueUnavailable(one_line(error)) from error

    def _no_answer(self) -> QueueUnavailable:
        return QueueUnavailable(f"Redis did not answer within {self._seconds:g} s")


def _retrieve_error(sent: asyncio.Future[None]) -> None:
    """asyncio would log an error that nobody retrieved: the caller may be gone."""
    if not sent.cancelled():
        sent.exception()
