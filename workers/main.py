"""The Celery app of a worker: `celery -A workers.main:celery worker -Q <queue> -c <n> -n <node>`.

The node names this worker everywhere, and no other process may have it (app/queue/node.py).

The app brings its pool. `celery` is made on access, so importing this module reads no settings.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from celery import Celery, signals

from app.queue.celery_app import make_celery
from config.logging import setup_logging
from config.settings import ConfigError, Settings, load_settings
from config.worker_readiness import WorkerReadiness
from workers.celery_host import remote_control, tasks
from workers.celery_host.event_buffer import EventBuffer
from workers.celery_host.fetch import BatchFetchConnection, Fetching
from workers.celery_host.pool import Lifespan, StopWorker, TaskPool
from workers.celery_host.program import WorkerProgram

if TYPE_CHECKING:  # see workers.celery_host.tasks
    from workers.generation.runner import Runner


def make_worker_app(settings: Settings, lifespan: Lifespan, readiness: WorkerReadiness) -> Celery:
    """A Celery app that runs our task in our pool, with the runner that `lifespan` gives. One for each process."""
    celery = make_celery(settings)
    celery.conf.worker_pool = "workers.celery_host.pool:TaskPool"
    celery.conf.worker_consumer = "workers.celery_host.connection:ReconnectingConsumer"
    celery.Worker = celery.subclass_with_self(WorkerProgram)
    celery.Worker.readiness = readiness
    celery.amqp.Connection = BatchFetchConnection
    celery.steps["consumer"].update({EventBuffer, Fetching})
    # Celery leaves logging alone if somebody else handles this signal.
    logging_form = (settings.log_level, settings.log_format, "worker")
    signals.setup_logging.connect(lambda **_: setup_logging(*logging_form), weak=False)
    tasks.register(celery)
    remote_control.install()
    TaskPool.lifespan = staticmethod(lifespan)
    return celery


def _from_environment() -> Celery:
    settings = load_settings()
    readiness = WorkerReadiness(settings.ready_file)

    def lifespan(stop_worker: StopWorker, node: str) -> AbstractAsyncContextManager[Runner]:
        # Engines take seconds to import, so this waits until the pool's loop needs one.
        from workers.worker import worker_lifespan

        return worker_lifespan(settings, stop_worker, readiness, node)

    return make_worker_app(settings, lifespan, readiness)


def __getattr__(name: str) -> Any:
    if name != "celery":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        celery = globals()["celery"] = _from_environment()
    except ConfigError as error:
        sys.stderr.write(f"longhaul: {error}\n")
        raise SystemExit(os.EX_CONFIG) from None
    return celery
