"""How a worker stays connected to Redis: it reconnects soon, and a lost connection ends nothing that runs."""

from __future__ import annotations

import contextlib
import logging
from time import monotonic
from typing import Any

from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker.consumer import Consumer
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from app.protocol.text import type_and_places

log = logging.getLogger("longhaul.worker")

RECONNECT_SECONDS = 2.0
MAX_BUGS = 5
BUG_SECONDS = 60.0
"""After MAX_BUGS errors within so many seconds that are no broken connections, the worker stops."""


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
    """Reconnects after any error of its own, while the jobs of the pool run on; ends the worker if a bug repeats.

    Celery reconnects after the errors that it knows as connection errors, and ends the worker after all others. Some of
    those are broken connections all the same, such as the OperationalError of a broadcast at the start (found by
    tests/faults with celery and kombu 5.7). So an error that is not known as a broken connection is forgiven, but not
    MAX_BUGS times within BUG_SECONDS.
    """

    connection_errors: tuple[type[Exception], ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = (*self.connection_errors, *self.channel_errors, OperationalError, RedisError)
        self._bugs: list[float] = []
        self.connection_errors = (Exception,)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        self._judge(exc)
        super().on_connection_error_before_connected(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        self._judge(exc)
        super().on_connection_error_after_connected(exc)

    def _judge(self, error: Exception) -> None:
        """Raises WorkerShutdown, which drains the worker, after too many errors that are no broken connections."""
        if isinstance(error, self._known):
            return
        now = monotonic()
        self._bugs = [at for at in self._bugs if at > now - BUG_SECONDS] + [now]
        log.error("an error in Celery's main thread: %s", type_and_places(error))
        if len(self._bugs) >= MAX_BUGS:
            log.critical("that was the %dth within %g s; the worker stops", MAX_BUGS, BUG_SECONDS)
            raise WorkerShutdown(EX_FAILURE) from error
