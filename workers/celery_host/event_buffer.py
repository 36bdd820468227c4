"""Sends the events of a worker's tasks in batches, from Celery's main thread alone.

The reasons: docs/internals/decisions/messages.md.

By itself, Celery's main thread publishes each event as soon as it is free, while the pool's loop begins the response.
The thread that adds the 24th event publishes all of them: that may be the pool's loop, which then waits for Redis. This
module relies on attributes of Celery's dispatcher (celery 5.7).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from celery import bootsteps
from celery.worker.consumer.events import Events

FLUSH_SECONDS = 0.5
"""How late Flower may show the progress of a task."""
MAX_EVENTS = 5_000
"""Events kept of each group while Redis is away. The oldest go: Flower reads in Postgres what became of a task."""
MAX_BATCHES = 16
"""Batches that could not be sent, and are sent again."""


class EventBuffer(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Publishes the events of FLUSH_SECONDS in one message."""

    requires = (Events,)

    _buffer: Any = None
    """Events by their groups. Each new connection's dispatcher gets it, so a lost connection loses few."""

    def start(self, consumer: Any) -> None:
        dispatcher, flush_is_due = consumer.event_dispatcher, threading.Lock()

        def flush() -> None:
            flush_is_due.release()  # first: an event that is buffered from now on schedules the next flush
            dispatcher.flush()

        def schedule_flush() -> None:
            for events in self._buffer.values():
                del events[:-MAX_EVENTS]
            if flush_is_due.acquire(blocking=False):
                consumer.hub.call_soon(consumer.hub.call_later, FLUSH_SECONDS, flush)

        if self._buffer is not None:
            dispatcher._group_buffer = self._buffer
        self._buffer = dispatcher._group_buffer
        dispatcher._outbound_buffer = deque(dispatcher._outbound_buffer, MAX_BATCHES)
        dispatcher.buffer_limit = float("inf")
        dispatcher.on_send_buffered = schedule_flush
        schedule_flush()
