"""The worker process: how it starts, and how it stops.

What stops a worker: SIGTERM, SIGINT, SIGQUIT, a closed terminal, Flower's button, or its own `pool.StopWorker`.

    running --1st signal--> draining: it takes no messages; running responses may end (grace), then the others
                            are cancelled and released; remote control and events work on
            --2nd signal--> the grace is over
            --3rd signal--> the process exits at once, as by kill -9; leases let other workers take over
    draining --nothing runs--> Celery's warm shutdown of an idle worker, or exit after STOP_SECONDS

Celery's own soft shutdown is not used. It sleeps in a signal handler, always for the whole grace, receives no revoke
meanwhile, and can block on a lock that the interrupted main thread holds.
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

from celery import signals
from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from celery.platforms import EX_FAILURE
from celery.worker import state as worker_state

from config.worker_readiness import WorkerReadiness
from workers.celery_host.remote_control import discard

log = logging.getLogger("longhaul.worker")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
FORCE_AT = 3
"""The number of signals at which the process exits at once."""
HUB_SECONDS = 2.0
"""How long Celery's main thread has to begin its shutdown. Without Redis it may not respond; then a flag stops it."""
STOP_SECONDS = 30.0
"""How long the shutdown of a worker may take once nothing runs. Then the process exits: others have its responses."""
EXIT_SECONDS = 10.0
"""How long threads of libraries may delay the exit of a worker that has stopped."""


class WorkerProgram(Worker):  # type: ignore[misc]  # Celery has no types
    """Celery's worker with our way to stop. Exit codes: 0, 78 for a bad setting, 1 for all else."""

    readiness: WorkerReadiness
    """The worker's readiness; `make_worker_app` sets it."""

    _signals_received = 0
    _draining = False

    def on_before_init(self, **kwargs: Any) -> None:
        # Celery warns root because of pickle in messages; this app accepts only JSON (app.queue.celery_app).
        warnings.filterwarnings("ignore", category=SecurityWarning)
        super().on_before_init(**kwargs)

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        """Switches off mingle and gossip, whose cost grows with the square of the number of workers.

        Mingle waits a second for the ids that other workers know as revoked; here a revoke is in Postgres, where the
        claim finds it. Gossip reads every heartbeat of every worker, for an election that nothing here holds.
        """
        return {**super().prepare_args(**kwargs), "without_mingle": True, "without_gossip": True}

    def start(self) -> None:
        self.pool.stop_worker = lambda exit_code: self._begin_drain(exit_code, at_once=True)
        signals.task_revoked.connect(self._on_revoked)
        super().start()
        _exit_after(EXIT_SECONDS, self.exitcode or 0, "some threads do not end")

    def install_platform_tweaks(self, worker: Any) -> None:
        """Replaces the signal handlers that Celery installs here, including the re-exec at SIGHUP."""
        super().install_platform_tweaks(worker)
        for signum in STOP_SIGNALS:
            signal.signal(signum, self._on_signal)
        # Celery warns at each reconnect that Celery 6 will cancel running tasks then; a setting prevents that here.
        warnings.filterwarnings("ignore", message="(?s).*on connection loss", category=PendingDeprecationWarning)

    def shut_down(self, exit_code: int = 0) -> None:
        """Begins to drain, or ends the grace of the current drain. From any thread; takes no lock."""
        if self.pool is None or not self.pool.active:
            worker_state.should_stop = exit_code  # still starting: TaskPool.on_start checks it
        else:
            self.pool.call(self._begin_drain, exit_code)

    def _on_signal(self, signum: int, _frame: Any) -> None:
        # The main thread may hold any lock now, so this only sets a flag or wakes the pool's loop.
        self._signals_received += 1
        if self._signals_received >= FORCE_AT:
            os._exit(EX_FAILURE)
        self.shut_down()

    # On the pool's loop

    def _begin_drain(self, exit_code: int, at_once: bool = False) -> None:
        self.readiness.hide()
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
            _exit_after(STOP_SECONDS, exit_code or EX_FAILURE, "the worker does not stop")
        self.hub.call_soon(self._shut_down_celery, exit_code)
        asyncio.get_running_loop().call_later(HUB_SECONDS, setattr, worker_state, "should_stop", exit_code)

    # On the main thread

    def _stop_consuming(self) -> None:
        for consumer in (self.consumer.task_consumer, self.consumer.foreground_consumer):
            if consumer is not None:
                with contextlib.suppress(*self.consumer.connection_errors):
                    consumer.cancel()

    def _shut_down_celery(self, exit_code: int) -> None:
        try:
            if self.consumer.event_dispatcher is not None:
                self.consumer.event_dispatcher.flush()
        finally:
            worker_state.should_stop = exit_code

    # On any thread

    def _on_revoked(self, request: Any = None, terminated: bool = False, expired: bool = False, **_: Any) -> None:
        """Celery discarded a message because its id was revoked: cancels the row (see `remote_control`)."""
        if not terminated and not expired:
            discard(self.consumer, request.id)


def _exit_after(seconds: float, exit_code: int, reason: str) -> None:
    """Exits the process after `seconds` if it still runs then, whichever thread blocks it."""

    def exit_now() -> None:
        log.error("%s; exiting all the same", reason)
        os._exit(exit_code)

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()
