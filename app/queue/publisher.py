"""The task queue: sending messages of responses to workers, and commands that stop something.

A message says "look at response X", nothing more. Postgres is the truth: maintenance sends a lost message again, and
the claim drops a duplicate. So nothing here waits long, and a request does not fail because its message was not sent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast

from app.batching import Batcher
from app.protocol.text import one_line
from app.queue.celery_app import make_celery
from app.queue.commands import Command, GetKey, signed
from app.queue.message import Message
from app.queue.message_template import MessageTemplate
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
LIST_SECONDS = 3600
"""How long a list is kept after its last message: a worker takes its own at once, and that of a dead one must end."""
THREADS = 1
"""Number of threads for commands, which go through Celery and block."""
WORKER_REPLY_SECONDS = 3.0
"""How long a worker may take to answer a command."""
COUNT_SECONDS = 60
"""How long a caller waits for the count of a prompt's tokens, and how long the prompt is left in Redis."""

_SEND = f"""
for i, list in ipairs(KEYS) do
    redis.call('LPUSH', list, ARGV[3 * i - 2])
    redis.call('EXPIRE', list, {LIST_SECONDS})
    redis.call('PUBLISH', ARGV[3 * i], ARGV[3 * i - 1])
end
"""


class QueueUnavailable(Exception):
    """Redis did not take the message in time. It may have arrived all the same."""


async def _no_key() -> bytes:
    raise QueueUnavailable("this process signs no commands")


class TaskQueue:
    """Sends from an event loop. Messages that arrive while a batch is being sent go together in the next one.

    A batch of messages is one write to Redis, from a template. Commands go through Celery, from a thread.
    """

    def __init__(self, settings: Settings, get_key: GetKey = _no_key, seconds: float = SEND_SECONDS) -> None:
        """Connects to nothing. `get_key` is for commands. Raises ConfigError if REDIS_URL is unset."""
        self._celery = make_celery(settings)
        self._get_key = get_key
        self._seconds = seconds
        self._client = make_client(settings.broker_url)
        self._template: MessageTemplate | None = None
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

    async def revoke(self, *response_ids: str) -> None:
        """Notifies the workers of committed cancellations. Never raises: the fence stops a worker as well."""
        await self._revokes.submit(response_ids)

    async def command(self, command: Command, worker: str, **arguments: Any) -> str | None:
        """Tells one worker to do something. Returns why it did not, or None. Raises QueueUnavailable."""
        replies = await self._command_workers(command, arguments, worker, is_answered=True)
        if not replies:
            raise QueueUnavailable(f"{worker} did not answer")
        reply = replies[0].get(worker) or {}
        return None if "ok" in reply else str(reply.get("error", reply))

    async def ask_to_count(self, worker: str, key: str, project: str, sealed: str) -> None:
        """Leaves the project's sealed prompt under a key, and tells the worker to count its tokens.

        Raises QueueUnavailable. The command may be lost; then the prompt stays there, for COUNT_SECONDS.
        """
        await self._command(lambda: cast(Awaitable[object], self._client.set(key, sealed, ex=COUNT_SECONDS)))
        await self.tell_to_count(worker, key, project)

    async def tell_to_count(self, worker: str, key: str, project: str) -> None:
        """Raises QueueUnavailable."""
        await self._command_workers(Command.COUNT, {"key": key, "project": project}, worker)

    async def has_prompt(self, key: str) -> bool:
        """Whether no worker has taken what `ask_to_count` left. Raises QueueUnavailable."""
        return bool(await self._command(lambda: self._client.exists(key)))

    async def take_prompt(self, key: str) -> bytes | None:
        """Returns what `ask_to_count` left; None: its caller waits no longer. Raises QueueUnavailable."""
        return await self._command(lambda: cast(Awaitable[bytes | None], self._client.getdel(key)))

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
        template = self._template = self._template or MessageTemplate(self._celery)
        lists, values = [each.list for each in messages], list[str | bytes]()
        for message in messages:
            values += (*template.filled(message), template.channel)
        await self._command(lambda: run_script(self._client, _SEND, lists, *values))

    async def _command(self, command: Callable[[], Awaitable[T]]) -> T:
        """Raises QueueUnavailable."""
        try:
            return await try_twice(command)
        except Exception as error:  # of redis-py, asyncio, the system or uvloop: in each case Redis is away
            raise QueueUnavailable(one_line(error)) from error

    async def _broadcast_revoke(self, batch: Sequence[Sequence[str]]) -> Sequence[None]:
        # A broadcast costs every worker the same, whether it names one id or hundreds.
        ids = list(chain.from_iterable(batch))
        try:
            await self._command_workers(Command.REVOKE, {"task_id": ids})
        except QueueUnavailable as error:
            log.warning("workers were not notified of %d cancelled response(s): %s", len(ids), error)
        return [None] * len(batch)

    async def _command_workers(
        self, command: Command, arguments: Mapping[str, Any], worker: str | None = None, *, is_answered: bool = False
    ) -> Any:
        """Returns what the worker replies, if it `is_answered`. Raises QueueUnavailable."""
        try:
            key = await self._get_key()
        except Exception as error:  # of Postgres, which has the key
            raise QueueUnavailable(f"commands cannot be signed ({type(error).__name__})") from error
        said = signed(key, command, arguments, worker, secrets.token_hex(8))
        to: dict[str, Any] = {"destination": [worker]} if worker else {}
        if is_answered:
            to |= {"reply": True, "limit": 1, "timeout": WORKER_REPLY_SECONDS}
        return await self._in_thread(partial(self._celery.control.broadcast, command.value, arguments=said, **to))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Raises QueueUnavailable. The thread may wait for a dead Redis a little longer than the caller does."""
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
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
