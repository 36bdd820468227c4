"""Takes several waiting messages from Redis at a time (docs/decisions/batched-fetch.md).

kombu's BRPOP takes one message. Between two messages lie a turn of kombu's loop and three
system calls. After each call Celery's thread has to win the interpreter back from the pool's thread, so the last of
many simultaneous requests began late. BLMPOP takes several messages, and no more than there are free places.

A worker has a channel for each list of its queue: Celery's own for answers, one for those in foreground places, and one
for counts. Each has places of its own, so they never wait for each other.

This overrides private methods of kombu's channel (kombu 5.7); tests/unit/celery_host/test_private_api.py names them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from queue import Empty
from time import monotonic
from typing import Any

import orjson
from celery import bootsteps
from celery.worker.consumer.tasks import Tasks
from kombu import Queue
from kombu.common import ignore_errors
from kombu.transport.redis import Channel, Transport
from kombu.transport.virtual import QoS

from app.queue.message import Kind
from workers.celery_host.connection import FastReconnectConnection
from workers.celery_host.sharing import Load, Question, Sharing

MAX_MESSAGES = 8
"""The most messages of one reply: few, because they are handed over before Redis is asked again."""


class PlacesQoS(QoS):  # type: ignore[misc]  # kombu has no types
    """Lets a channel ask for messages while it has free places, and take those that it asked for."""

    def can_consume(self) -> bool:
        # There may be fewer places by now. But a message of the reply has left Redis: nobody else can take it.
        return bool(self.channel._in_poll) or self.channel.free_places() > 0


TIMER_SECONDS = 0.002
"""A timer of uvloop may end a millisecond early; a question that comes too early is not asked."""


class BatchChannel(Channel):  # type: ignore[misc]  # kombu has no types
    """Takes up to MAX_MESSAGES at once, with BLMPOP: Redis 7.0."""

    free_places: Callable[[], int] = staticmethod(lambda: 1)
    """How many messages may be taken."""
    sharing: Sharing | None = None
    """Decides how many of them this worker takes; None: all."""
    call_again: Callable[[float], None] = staticmethod(lambda _: None)
    """Has `_brpop_start` called after so many seconds."""

    _asks_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.QoS = PlacesQoS

    def _brpop_start(self, timeout: float | None = None) -> None:
        if monotonic() < self._asks_at:
            return
        question = self._question()
        if not question.count:
            self._asks_at = monotonic() + (question.seconds or 0)
            self.call_again((question.seconds or 0) + TIMER_SECONDS)
            return
        wait = question.seconds or timeout
        if keys := self._lists():
            connection = self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            wait = (self.brpop_timeout if wait is None else wait) or 0
            connection.send_command("BLMPOP", wait, len(keys), *keys, "RIGHT", "COUNT", question.count)

    def _lists(self) -> list[str]:
        return sorted(self.active_queues)

    def _question(self) -> Question:
        most = min(max(self.free_places(), 1), MAX_MESSAGES)
        if self.sharing is None or not (lists := self._lists()):
            return Question(most)
        return self.sharing.question(self._note_client, lists, most)

    @cached_property
    def _note_client(self) -> Any:
        """A client for notes: kombu watches the socket on which `client` waits for messages."""
        with self.conn_or_acquire() as client:
            return client

    def _brpop_read(self, **options: Any) -> bool:
        reply = self._read_reply()
        if reply is None:
            raise Empty
        key, messages = reply
        with ExitStack() as deliveries:  # runs every delivery, even if one raises
            for message in reversed(messages):
                deliveries.callback(self._deliver, message, key.decode())
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


class Fetching(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Gives each connection's channel for answers its places and this worker's share, and adds those of other kinds."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        consumer.kind_consumers = []
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        consumer.kind_consumers = []
        self._share(consumer, consumer.task_consumer.channel, Kind.ANSWERS)
        for kind in (Kind.FOREGROUND, Kind.COUNTS):
            channel = consumer.connection.channel()
            channel.free_places = partial(consumer.pool.free_places, kind)
            if kind is Kind.FOREGROUND:
                self._share(consumer, channel, kind)
            names = [f"{queue}{kind}" for queue in consumer.app.amqp.queues.consume_from]
            added = consumer.app.amqp.TaskConsumer(
                channel,
                [Queue(name, routing_key=name) for name in names],
                on_message=consumer.create_task_handler(),
                on_decode_error=consumer.on_decode_error,
            )
            consumer.kind_consumers.append(added)
            added.consume()

    def _share(self, consumer: Any, channel: Any, kind: Kind) -> None:
        """Answers of both kinds go to the workers that have the fewest of all."""
        pool = consumer.pool
        channel.free_places = partial(pool.free_places, kind)
        channel.sharing = Sharing(consumer.hostname, lambda: Load(pool.answers, pool.slots))
        channel.call_again = pool.wake_consumer_in

    def stop(self, consumer: Any) -> None:
        for added in consumer.kind_consumers:
            ignore_errors(consumer, added.cancel)
