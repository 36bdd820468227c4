"""The queue: what every process that speaks to Celery agrees on, and the API's way to send.

A message says "look at response X", nothing more. Postgres is the truth: a message that is lost is
sent again by maintenance, one that comes twice is dropped at the claim. So nothing here waits long,
and a failure to send is no failure of a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery

from app.batching import Batcher
from app.protocol.text import one_line
from app.queue.message import Message
from app.queue.message_template import TASK
from app.queue.publisher import Publisher, QueueUnavailable
from config.settings import ConfigError, Settings, load_settings

__all__ = ["TASK", "Priority", "QueueUnavailable", "TaskQueue", "make_celery"]

log = logging.getLogger("longhaul.queue")

SEND_SECONDS = 5.0
"""How long a caller waits for Redis to take a message, at most."""
THREADS = 2
"""For what is rare: revoking, and looking at the head of a list."""
MOST_REVOKED = 200
"""Ids of one broadcast: Celery's log has them in a line."""


class Priority(IntEnum):
    """Redis' order: 0 is taken first; strictly, so a lower one may starve.

    The service tier decides; within a tier those whose client waits go first.
    """

    URGENT = 0
    """Short work of the server itself: counting tokens."""
    PRIORITY_FOREGROUND = 1
    PRIORITY_BACKGROUND = 2
    FOREGROUND = 3
    BACKGROUND = 6
    FLEX_FOREGROUND = 8
    FLEX = 9

    @classmethod
    def of(cls, tier: str, *, background: bool) -> Priority:
        """That of a service tier: `default`, `flex` or `priority`."""
        return _TIERS[tier][background]


_TIERS = {
    "priority": (Priority.PRIORITY_FOREGROUND, Priority.PRIORITY_BACKGROUND),
    "default": (Priority.FOREGROUND, Priority.BACKGROUND),
    "flex": (Priority.FLEX_FOREGROUND, Priority.FLEX),
}


def make_celery(settings: Settings) -> Celery:
    """The Celery app of every process. Connects to nothing. Raises ConfigError where REDIS_URL is unset."""
    celery = Celery("longhaul", set_as_current=False)
    celery.conf.update(_delivery(settings), **_worker(settings), **_format())
    return celery


def _delivery(settings: Settings) -> dict[str, Any]:
    return {
        "broker_url": _kombu_url(settings.broker_url),
        "broker_transport_options": {
            "priority_steps": [priority.value for priority in Priority],
            # A worker of several queues takes from them in turn, so that a full one starves none.
            "queue_order_strategy": "round_robin",
            # Redis may vanish without closing the connection. kombu's default is to wait for ever.
            "socket_connect_timeout": 2.0,
            "socket_timeout": 5.0,
            "socket_keepalive": True,
            # What a worker has not acknowledged yet it remembers, and puts back when it stops. Redis is not told of
            # each message twice more: one that is lost with its worker was not claimed, and maintenance sends it again.
            "ack_emulation": False,
        },
        "broker_connection_timeout": 2.0,
        # Workers wait for Redis, at the start and ever after; by default they give up after 100 tries.
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # Maintenance sends again: a sender tries twice and says so.
        "task_publish_retry": True,
        "task_publish_retry_policy": {
            "max_retries": 1,
            "interval_start": 0.0,
            "interval_step": 0.1,
            "interval_max": 0.1,
        },
        # Only queues named by a model are used; this one is where a message without a queue would be seen.
        "task_default_queue": "unrouted",
        # Early: an unacknowledged message is delivered again at every broken connection and after
        # visibility_timeout, while the first copy still runs. The claim and its lease replace late acks.
        "task_acks_late": False,
        # No results: the row has them. Flower's states come from events.
        "result_backend": None,
        "task_ignore_result": True,
    }


def _worker(settings: Settings) -> dict[str, Any]:
    return {
        # With early acks a worker would reserve more than it runs, and others would idle.
        "worker_disable_prefetch": True,
        "worker_prefetch_multiplier": 1,
        "worker_enable_prefetch_count_reduction": False,  # reserves no more than it runs anyway
        # A hiccup of Redis must not throw away what the engine generates. (The default will change in Celery 6.)
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": True,  # Flower lives on events
        "task_send_sent_event": True,  # ... and sees queued responses by this one
        "worker_enable_remote_control": True,  # Flower's buttons and our cancel
        # How long running responses may go on when a worker is told to stop; workers.celery_host.pool reads it.
        "worker_soft_shutdown_timeout": settings.shutdown_grace_seconds,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _format() -> dict[str, Any]:
    # JSON alone: whoever can write to Redis must not be able to run code by a pickle.
    return {
        "task_serializer": "json",
        "event_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "timezone": "UTC",
        "enable_utc": True,
    }


def _kombu_url(url: str) -> str:
    """kombu has its own way to write `unix://[user:password@]/path[?db=N]`."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={database}"


class TaskQueue:
    """Sends from an event loop. What is rare goes through Celery, which blocks, and so works in threads of its own."""

    def __init__(self, settings: Settings, seconds: float = SEND_SECONDS) -> None:
        """Connects to nothing. Raises ConfigError where REDIS_URL is unset."""
        self._celery = make_celery(settings)
        self._seconds = seconds
        self._post = Publisher(self._celery, settings.broker_url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="longhaul-queue")
        self._revokes = Batcher(self._tell, max_items=MOST_REVOKED, weight=len)

    async def enqueue(self, response_id: str, model: str, queue: str, priority: int) -> None:
        """Sends the message of a committed response. Raises QueueUnavailable, within SEND_SECONDS."""
        await self.enqueue_all([Message(response_id, model, queue, int(priority))])

    async def enqueue_all(self, messages: Sequence[Message]) -> None:
        """Sends several together, whatever becomes of the caller. Raises QueueUnavailable, within SEND_SECONDS.

        Then none, some, or all of them may have arrived.
        """
        posted = self._post.send(messages)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(posted)
        except TimeoutError:
            posted.cancel()
            raise self._silent() from None

    async def head(self, queue: str, priority: int) -> str | None:
        """The task id of the message that a worker will take next from this queue at this priority.

        None where there is none. Raises QueueUnavailable, within SEND_SECONDS.
        """
        found: list[str | None] = []
        await self._bounded(lambda: found.append(self._head(queue, priority)))
        return found[0]

    async def revoke(self, *response_ids: str) -> None:
        """Tells the workers of committed cancellations. Never raises: the fence stops them as well."""
        await self._revokes.submit(response_ids)

    async def close(self) -> None:
        """Forgets what was not sent yet. Celery's connections stay: kombu shares them within a process, per URL."""
        await self._revokes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._post.close()

    async def _tell(self, batch: Sequence[Sequence[str]]) -> Sequence[None]:
        # A broadcast costs every worker the same, whether it names one id or hundreds.
        ids = list(chain.from_iterable(batch))
        try:
            await self._bounded(lambda: self._celery.control.revoke(ids, terminate=True))
        except QueueUnavailable as error:
            log.warning("workers were not told of %d cancelled response(s): %s", len(ids), error)
        return [None] * len(batch)

    def _head(self, queue: str, priority: int) -> str | None:
        with self._celery.connection_or_acquire() as connection:
            channel = connection.default_channel
            # kombu pushes on the left and takes from the right (kombu 5.7, transport/redis.py).
            message = channel.client.lindex(channel._q_for_pri(queue, priority), -1)
        return None if message is None else str(json.loads(message)["headers"]["id"])

    async def _bounded(self, work: Callable[[], object]) -> None:
        """Raises QueueUnavailable. A thread may stay with a dead Redis a little longer than its caller."""
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise self._silent() from None
        except Exception as error:
            # kombu wraps what redis-py, sockets and DNS raise; whatever it was, Redis did not do it.
            raise QueueUnavailable(one_line(error)) from error

    def _silent(self) -> QueueUnavailable:
        return QueueUnavailable(f"Redis did not answer within {self._seconds:g} s")


def __getattr__(name: str) -> Any:
    """`flower_app`, for `celery -A app.queue.celery_app:flower_app flower`: made when asked for, not at import."""
    if name != "flower_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return make_celery(load_settings())
    except ConfigError as error:
        raise SystemExit(f"longhaul: {error}") from None
