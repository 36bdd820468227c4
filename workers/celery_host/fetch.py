"""Takes several waiting messages from Redis at a time (docs/internals/decisions/messages.md).

kombu's BRPOP takes one message. Between two messages lie a turn of kombu's loop and three
system calls. After each call Celery's thread has to win the interpreter back from the pool's thread, so the last of
many simultaneous requests began late. BLMPOP takes several messages, and no more than there are free places.

A worker takes answers from its own lists, to which they were sent (app/scheduling). It has a channel for each:
Celery's own, and one for those in foreground places. Each has places of its own, so they never wait for each other. A
worker that stops returns nothing: what it did not begin waits again without its message, for other workers.

This overrides private methods of kombu's channel (kombu 5.7); tests/unit/celery_host/test_private_api.py names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
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
from app.queue.publisher import LIST_SECONDS
from workers.celery_host.connection import FastReconnectConnection

MAX_MESSAGES = 8
"""The most messages of one reply: few, because they are handed over before Redis is asked again."""


class PlacesQoS(QoS):  # type: ignore[misc]  # kombu has no types
    """Lets a channel ask for messages while it has free places, and take those that it asked for."""

    def can_consume(self) -> bool:
        # There may be fewer places by now. But a message of the reply has left Redis: nobody else can take it.
        return bool(self.channel._in_poll) or self.channel.free_places() > 0


class BatchChannel(Channel):  # type: ignore[misc]  # kombu has no types
    """Takes up to MAX_MESSAGES at once, with BLMPOP: Redis 7.0."""

    do_restore = False
    """Whether a stopped worker puts messages back: nobody takes from its own lists."""
    free_places: Callable[[], int] = staticmethod(lambda: 1)
    """How many messages may be taken."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.QoS = PlacesQoS

    def _brpop_start(self, timeout: float | None = None) -> None:
        if keys := sorted(self.active_queues):
            connection = self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            wait = (self.brpop_timeout if timeout is None else timeout) or 0
            count = min(max(self.free_places(), 1), MAX_MESSAGES)
            connection.send_command("BLMPOP", wait, len(keys), *keys, "RIGHT", "COUNT", count)

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
            self._flush_brpop_reauth()  # as kombu does: between two commands a new token may be sent

    def _restore(self, message: Any, leftmost: bool = False) -> None:
        # A stopping worker got it after it had cancelled its consumer. Nobody takes from that worker's own list again.
        super()._restore(message, leftmost)
        with self.conn_or_acquire() as client:
            client.expire(message.delivery_info["routing_key"], LIST_SECONDS)

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
    """Points each connection's channel for answers to the worker's own list, and adds one for foreground places."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        consumer.foreground_consumer = None
        super().__init__(consumer, **kwargs)

    def start(self, consumer: Any) -> None:
        queues = list(consumer.app.amqp.queues.consume_from)
        own = consumer.task_consumer
        own.channel.free_places = partial(consumer.pool.free_places, Kind.ANSWERS)
        for queue in queues:
            own.cancel_by_queue(queue)
            own.add_queue(_queue(consumer.pool.list_of(queue, Kind.ANSWERS)))
        consumer.foreground_consumer = self._consumer_of(consumer, queues, Kind.FOREGROUND)
        consumer.pool.offer(is_consuming=True)

    def _consumer_of(self, consumer: Any, queues: Sequence[str], kind: Kind) -> Any:
        channel = consumer.connection.channel()
        channel.free_places = partial(consumer.pool.free_places, kind)
        added = consumer.app.amqp.TaskConsumer(
            channel,
            [_queue(consumer.pool.list_of(queue, kind)) for queue in queues],
            on_message=consumer.create_task_handler(),
            on_decode_error=consumer.on_decode_error,
        )
        added.consume()
        return added

    def stop(self, consumer: Any) -> None:
        consumer.pool.offer(is_consuming=False)
        if consumer.foreground_consumer is not None:
            ignore_errors(consumer, consumer.foreground_consumer.cancel)


def _queue(list_: str) -> Queue:
    """A queue of the default exchange: a binding of another one would stay in Redis after the worker."""
    return Queue(list_, routing_key=list_)
