"""How a worker stays connected to Redis: it reconnects soon, and a lost connection ends nothing that runs."""

from __future__ import annotations

import contextlib
from typing import Any

from celery.worker.consumer import Consumer
from kombu import Connection

RECONNECT_SECONDS = 2.0


class FastReconnectConnection(Connection):  # type: ignore[misc]  # kombu has no types
    """A connection to Redis that reconnects every RECONNECT_SECONDS, and whose loss raises nothing.

    kombu would wait ever longer, until it notices Redis up to 30 s after its return.
    """

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        pause = {"interval_start": RECONNECT_SECONDS, "interval_step": 0, "interval_max": RECONNECT_SECONDS}
        return super().ensure_connection(*args, **(pause | kwargs))

    def maybe_close_channel(self, channel: Any) -> None:
        # A channel returns its unacknowledged messages to the queue. If the connection is lost, that fails with an
        # AttributeError (kombu 5.7), which would end the worker. Maintenance sends such messages again.
        with contextlib.suppress(Exception):
            channel.close()


class ReconnectingConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Reconnects after any error of its own, while the jobs of the pool run on.

    Celery reconnects after the errors that it knows as connection errors, and ends the worker after all others. Some of
    those are broken connections all the same, such as the OperationalError of a broadcast at the start (found by
    tests/faults with celery and kombu 5.7).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (Exception,)
