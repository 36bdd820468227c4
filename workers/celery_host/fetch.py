"""Takes several waiting messages from Redis at a time (docs/decisions/batched-fetch.md).

kombu's BRPOP takes one message. Between two messages lie a turn of kombu's loop and three
system calls. After each call Celery's thread has to win the interpreter back from the pool's thread, so the last of
many simultaneous requests began late. BLMPOP takes several messages of one list, and keeps what holds for BRPOP: the
first list that is not empty, in the order of priorities; several queues in turn; no more messages than free slots.

This overrides private methods of kombu's channel (kombu 5.7); tests/unit/celery_host/test_private_api.py names them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from queue import Empty
from time import monotonic
from typing import Any

import orjson
from celery import bootsteps
from celery.worker import state as worker_state
from celery.worker.consumer.tasks import Tasks
from kombu.transport.redis import Channel, Transport

from workers.celery_host.connection import FastReconnectConnection
from workers.celery_host.sharing import Load, Question, Sharing

MAX_MESSAGES = 8
"""The most messages of one reply: few, because they are handed over before Redis is asked again."""


class BatchChannel(Channel):  # type: ignore[misc]  # kombu has no types
    """Takes up to MAX_MESSAGES at once, with BLMPOP: Redis 7.0."""

    free_slots: Callable[[], int] = staticmethod(lambda: 1)
    """How many messages may be taken."""
    sharing: Sharing | None = None
    """Decides how many of them this worker takes; None: all."""
    call_again: Callable[[float], None] = staticmethod(lambda _: None)
    """Has `_brpop_start` called after so many seconds."""

    _asks_at = 0.0

    def _brpop_start(self, timeout: float | None = None) -> None:
        if monotonic() < self._asks_at:
            return
        question = self._question()
        if not question.count:
            self._asks_at = monotonic() + (question.seconds or 0)
            self.call_again(question.seconds or 0)
            return
        wait = question.seconds or timeout
        if keys := self._lists():
            connection = self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            wait = (self.brpop_timeout if wait is None else wait) or 0
            connection.send_command("BLMPOP", wait, len(keys), *keys, "RIGHT", "COUNT", question.count)

    def _lists(self) -> list[str]:
        queues = self._queue_cycle.consume(len(self.active_queues))
        return [self._q_for_pri(queue, priority) for priority in self.priority_steps for queue in queues]

    def _question(self) -> Question:
        most = min(max(self.free_slots(), 1), MAX_MESSAGES)
        if self.sharing is None or not (lists := self._lists()):
            return Question(most)
        return self.sharing.question(self._note_client, lists, most)

    @cached_property
    def _note_client(self) -> Any:
        """A client for notes: kombu watches the socket on which `client` waits for messages."""
        return self._create_client()

    def _brpop_read(self, **options: Any) -> bool:
        reply = self._read_reply()
        if reply is None:
            raise Empty
        key, messages = reply
        queue = key.decode().rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(queue)
        with ExitStack() as deliveries:  # runs every delivery, even if one raises
            for message in reversed(messages):
                deliveries.callback(self._deliver, message, queue)
        return True

    def _read_reply(self) -> tuple[bytes, list[bytes]] | None:
        try:
            reply: tuple[bytes, list[bytes]] | None = self.client.parse_response(self.client.connection, "BLMPOP")
            return reply
        except self.connection_errors:
            self.client.connection.disconnect()  # as kombu does: the next use reconnects
            raise
        finally:
            self._in_poll = None

    def _deliver(self, message: bytes, queue: str) -> None:
        self.connection._deliver(orjson.loads(message), queue)


class BatchTransport(Transport):  # type: ignore[misc]  # kombu has no types
    Channel = BatchChannel


class BatchFetchConnection(FastReconnectConnection):
    """A worker's connection to Redis, with channels that take several messages at a time."""

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        return BatchTransport if found is Transport else found


class FreeSlots(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Tells each connection's channel how many slots are free, and what this worker's share of a queue is.

    Free slots are counted as `worker_disable_prefetch` counts them.
    """

    requires = (Tasks,)

    def start(self, consumer: Any) -> None:
        def free_slots() -> int:
            limit: int = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            return limit - len(worker_state.reserved_requests)

        def load() -> Load:
            return Load(len(worker_state.reserved_requests), consumer.pool.slots)

        channel = consumer.task_consumer.channel
        channel.free_slots = free_slots
        channel.sharing = Sharing(consumer.hostname, load)
        channel.call_again = consumer.pool.wake_consumer_in
