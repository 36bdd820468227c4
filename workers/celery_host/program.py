"""The worker process: how it starts, and how it stops.

Told to stop (SIGTERM, SIGINT, SIGQUIT, a closed terminal, Flower's button, `pool.StopWorker`):

    running --1st--> draining: takes no message; running responses may end (grace), the others are
                     cancelled and released; remote control and events work on
            --2nd--> the grace is over
            --3rd--> gone at once, as by kill -9; leases see to the rest
    draining --nothing runs--> Celery's warm shutdown of an idle worker, or the end after STOP_SECONDS

Celery's own soft shutdown is not used. It sleeps in a signal handler, always for the whole grace,
hears no revoke meanwhile, and can block on a lock that the interrupted main thread holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import warnings
from typing import Any

from celery import bootsteps, signals
from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from celery.platforms import EX_FAILURE
from celery.worker import state as worker_state
from celery.worker.consumer import Consumer
from celery.worker.consumer.events import Events
from kombu import Connection
from kombu.transport.redis import Transport

from workers.celery_host.fetch import ManyTransport
from workers.celery_host.remote_control import cancel_rows

log = logging.getLogger("longhaul.worker")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
FORCE_AT = 3
HUB_SECONDS = 2.0
"""A main thread that does not come round to it (Redis is away) is stopped after this."""
RECONNECT_SECONDS = 2.0
STOP_SECONDS = 30.0
"""How long a worker that runs nothing any more may take to stop; then it is ended: others have its responses."""
FLUSH_SECONDS = 0.1
"""How late Flower may learn of a task's progress."""
EXIT_SECONDS = 10.0
"""How long threads that others started may hold up the exit of a worker that has stopped."""


class FastReconnectConnection(Connection):  # type: ignore[misc]
    """A connection to Redis that comes back soon, and whose loss ends nothing else.

    Tries again every RECONNECT_SECONDS; kombu would wait ever longer, up to 30 s after Redis is back.
    """

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        pause = {"interval_start": RECONNECT_SECONDS, "interval_step": 0, "interval_max": RECONNECT_SECONDS}
        return super().ensure_connection(*args, **(pause | kwargs))

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        return ManyTransport if found is Transport else found

    def maybe_close_channel(self, channel: Any) -> None:
        # A channel with messages that were not acknowledged wants to give them back, and where the connection is lost
        # meets an AttributeError (kombu 5.7), which would end the worker. Maintenance sends what is lost by that.
        with contextlib.suppress(Exception):
            channel.close()


class SturdyConsumer(Consumer):  # type: ignore[misc]
    """Connects anew after any error of its own; what the pool runs goes on.

    Celery does that for the errors that it takes for connection errors, and ends the worker by every other one. Some
    of those are a broken connection all the same: the OperationalError of a broadcast at the start, for instance
    (found by tests/faults, celery and kombu 5.7).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection_errors = (Exception,)


class EventBuffer(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets Celery's main thread alone talk to Redis, and tell it the events of FLUSH_SECONDS in one message.

    By default the 24th buffered event is published by whoever sends it: the pool's loop, that is, which then waits
    for Redis. And each is published as soon as the main thread comes round to it: by itself, mostly.
    """

    requires = (Events,)

    _buffer: Any = None
    """The events by groups, of every connection's dispatcher in turn: a lost connection takes none with it."""

    def start(self, consumer: Any) -> None:
        dispatcher, due = consumer.event_dispatcher, threading.Lock()

        def flush() -> None:
            due.release()  # first: what is buffered from here on gets a flush of its own
            dispatcher.flush()

        def buffered() -> None:
            if due.acquire(blocking=False):
                consumer.hub.call_soon(consumer.hub.call_later, FLUSH_SECONDS, flush)

        if self._buffer is not None:
            dispatcher._group_buffer = self._buffer
        self._buffer = dispatcher._group_buffer
        dispatcher.buffer_limit = float("inf")
        dispatcher.on_send_buffered = buffered
        buffered()


class WorkerProgram(Worker):  # type: ignore[misc]
    """Celery's worker, with our way to stop. Exit codes: 0, 78 for a bad setting, 1 for the rest."""

    _told = 0
    _draining = False

    def on_before_init(self, **kwargs: Any) -> None:
        # Celery warns root for fear of pickle in messages; only JSON is accepted here (app.queue.celery_app).
        warnings.filterwarnings("ignore", category=SecurityWarning)
        super().on_before_init(**kwargs)

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """Without Celery's neighbourhood.

        Mingle asks all workers for the ids that they know as revoked, and waits a second for it; ours are cancelled in
        Postgres, where a claim finds them. Gossip hears every heartbeat of every other worker, for an election that
        nothing here holds: in a fleet both grow with its square.
        """
        return {**super().prepare_args(**kwargs), "without_mingle": True, "without_gossip": True}

    def start(self) -> None:
        self.pool.stop_worker = lambda exit_code: self._begin(exit_code, at_once=True)
        signals.task_revoked.connect(self._on_revoked)
        super().start()
        _exit_at_latest(EXIT_SECONDS, self.exitcode or 0, "threads were left that do not end")

    def install_platform_tweaks(self, worker: Any) -> None:
        """Celery installs its signal handlers here; ours replace them, SIGHUP's re-exec included."""
        super().install_platform_tweaks(worker)
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._on_signal)
        # Celery 6 will cancel what runs when Redis goes away; it says so at each reconnect. Ours never will.
        warnings.filterwarnings("ignore", message="(?s).*on connection loss", category=PendingDeprecationWarning)

    def shut_down(self, exit_code: int = 0) -> None:
        """Begins to drain, or ends the grace where it does already. From any thread; takes no lock."""
        if self.pool is None or not self.pool.active:
            worker_state.should_stop = exit_code  # still starting: TaskPool.on_start looks at it
        else:
            self.pool.call(self._begin, exit_code)

    def _on_signal(self, signum: int, _frame: Any) -> None:
        # In the middle of anything, maybe with a lock in hand: set a flag, wake the loop, no more.
        self._told += 1
        if self._told >= FORCE_AT:
            os._exit(EX_FAILURE)
        self.shut_down()

    # On the pool's loop

    def _begin(self, exit_code: int, at_once: bool = False) -> None:
        if self._draining or at_once:
            self.pool.end_grace()
        if not self._draining:
            self._draining = True
            self._drain_task = asyncio.get_running_loop().create_task(self._drain(exit_code))

    async def _drain(self, exit_code: int) -> None:
        grace = float(self.app.conf.worker_soft_shutdown_timeout)
        log.info("stopping; running responses have %g s to end", grace)
        self.hub.call_soon(self._stop_consuming)
        try:
            await self.pool.drain(grace)
        finally:
            _exit_at_latest(STOP_SECONDS, exit_code or EX_FAILURE, "it does not stop")
        self.hub.call_soon(self._finish, exit_code)
        asyncio.get_running_loop().call_later(HUB_SECONDS, setattr, worker_state, "should_stop", exit_code)

    # On the main thread

    def _stop_consuming(self) -> None:
        if (consumer := self.consumer.task_consumer) is not None:
            with contextlib.suppress(*self.consumer.connection_errors):
                consumer.cancel()

    def _finish(self, exit_code: int) -> None:
        try:
            if self.consumer.event_dispatcher is not None:
                self.consumer.event_dispatcher.flush()
        finally:
            worker_state.should_stop = exit_code

    def _on_revoked(self, request: Any = None, terminated: bool = False, expired: bool = False, **_: Any) -> None:
        """A message was discarded for its id was revoked; see workers.celery_host.remote_control. Any thread."""
        if not terminated and not expired:
            cancel_rows(self.consumer, (request.id,))


def _exit_at_latest(seconds: float, exit_code: int, why: str) -> None:
    """Ends the process after that long, whatever holds it: Celery's main thread, or threads that are not ours."""

    def end() -> None:
        log.error("%s; exiting all the same", why)
        os._exit(exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
