"""How a worker takes messages from Redis: those that wait, several at a time.

kombu (5.7) asks by BRPOP, for one message each. Between two of them lie a turn of its loop and three system calls,
after each of which Celery's thread has to win the interpreter back from the pool's, which in a burst of requests is
busy: so the last of many began late. BLMPOP is the same for several of one list. What holds for BRPOP holds: the first
list that is not empty, in the order of priorities; round robin of several queues; no more than there are free slots.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from queue import Empty
from time import monotonic
from typing import Any

import orjson
from celery import bootsteps
from celery.worker import state as worker_state
from celery.worker.consumer.tasks import Tasks
from kombu.transport.redis import Channel, Transport

MOST_AT_ONCE = 8
"""Messages of one reply: few, for other workers of the queue have free slots, too."""


class ManyChannel(Channel):  # type: ignore[misc]  # kombu has no types
    """Takes up to MOST_AT_ONCE messages at once, by BRPOP where Redis (before 7.0, or its ACL) has no BLMPOP."""

    free: Callable[[], int] = staticmethod(lambda: 1)
    """How many messages may be taken."""

    _has_blmpop = True
    _asked_for_many = False

    def _brpop_start(self, timeout: float | None = None) -> None:
        count = min(self.free(), MOST_AT_ONCE)
        self._asked_for_many = count > 1 and self._has_blmpop and not self.global_keyprefix
        if not self._asked_for_many:
            super()._brpop_start(timeout)
        elif queues := self._queue_cycle.consume(len(self.active_queues)):
            keys = [self._q_for_pri(queue, priority) for priority in self.priority_steps for queue in queues]
            connection = self._in_poll = self.client.connection
            self._brpop_sent_at = monotonic()
            wait = (self.brpop_timeout if timeout is None else timeout) or 0
            connection.send_command("BLMPOP", wait, len(keys), *keys, "RIGHT", "COUNT", count)

    def _brpop_read(self, **options: Any) -> bool:
        if not self._asked_for_many:
            return bool(super()._brpop_read(**options))
        taken = self._reply()
        if taken is None:
            raise Empty
        queue = taken[0].decode().rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(queue)
        with ExitStack() as deliveries:  # an error in one of them costs the others nothing
            for message in reversed(taken[1]):
                deliveries.callback(self._take, message, queue)
        return True

    def _reply(self) -> tuple[bytes, list[bytes]] | None:
        try:
            reply: tuple[bytes, list[bytes]] | None = self.client.parse_response(self.client.connection, "BLMPOP")
            return reply
        except self.connection_errors:
            self.client.connection.disconnect()  # as kombu does: it is made anew
            raise
        except self.connection.channel_errors:  # Redis says no
            self._has_blmpop = False  # if it was something else, BRPOP meets it as well
            return None
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _take(self, message: bytes, queue: str) -> None:
        self.connection._deliver(orjson.loads(message), queue)


class ManyTransport(Transport):  # type: ignore[misc]
    Channel = ManyChannel


class Intake(bootsteps.StartStopStep):  # type: ignore[misc]
    """Tells each connection's channel how many slots are free, as `worker_disable_prefetch` counts them."""

    requires = (Tasks,)

    def start(self, consumer: Any) -> None:
        def free() -> int:
            limit: int = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
            return limit - len(worker_state.reserved_requests)

        consumer.task_consumer.channel.free = free
