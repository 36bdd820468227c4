"""A copy of maintenance: `python -m app.maintenance`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from prometheus_client import CollectorRegistry

from app.access.directory import Directory
from app.aio import BackgroundTasks, run_until
from app.announcer import Announcer
from app.batches.progress import BATCHES_AT_ONCE, BatchProgress
from app.dispatcher import Dispatcher
from app.files.attachments import Attachments
from app.files.documents import DocumentReader
from app.maintenance.fleet import FleetCollector
from app.maintenance.loop import Maintenance
from app.metrics.instruments import MaintenanceMetrics
from app.metrics.server import serving
from app.queue.publisher import TaskQueue
from app.responses.create.acceptor import RequestAcceptor
from app.responses.create.references import ReferenceResolver
from app.responses.models.catalog import PermittedCatalogs
from app.responses.models.registered import RegisteredModels
from app.store.database import Database
from app.store.keys import SharedSealer, pubsub_key
from app.store.migrate import wait_for_schema
from app.streaming.pubsub import PubSub
from app.webhooks.deliverer import Deliverer
from app.webhooks.sender import Sender
from config.logging import setup_logging
from config.models import load_models
from config.models_file import ModelsFile
from config.settings import ConfigError, Settings, load_settings

log = logging.getLogger("longhaul.maintenance")


async def maintain(settings: Settings) -> None:
    """Runs until the first SIGTERM or SIGINT; further ones are ignored, so that connections close in order."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    db = Database(settings.database_dsn, 4)
    watched = Database(settings.monitor_database_url or settings.database_dsn, 1)
    registry = CollectorRegistry()
    metrics = MaintenanceMetrics(registry)
    registry.register(FleetCollector(watched, settings.event_retention_seconds, partial(_models, settings)))
    key = pubsub_key(db)
    pubsub, queue = PubSub(settings.broker_url, key), TaskQueue(settings, key)
    directory, models = Directory(db, pubsub), ModelsFile(settings)
    announcer = Announcer(pubsub, queue, metrics.outside_endings)
    documents = DocumentReader(settings.max_body_bytes, shares=settings.asks_for_keys)
    of_batches = db.sibling(BATCHES_AT_ONCE)  # so that nothing else waits for connections behind large files
    dispatch = Dispatcher(of_batches, queue).dispatch
    catalogs = PermittedCatalogs(models.catalog, directory if settings.asks_for_keys else None)
    sealer = SharedSealer(db)
    acceptor = acceptor_of_lines(of_batches, sealer, catalogs, documents, settings)
    batches = BatchProgress(of_batches, pubsub, announcer, acceptor, dispatch, settings)
    webhooks = Deliverer(db, pubsub, Sender(settings.webhook_networks, sealer), metrics)
    background = BackgroundTasks()

    async def work() -> None:
        await wait_for_schema(db)
        await pubsub.start()
        if settings.asks_for_keys:
            directory.start()
        background.start(catalogs.follow(models))
        await Maintenance(settings, db, pubsub, queue, announcer, metrics, batches, webhooks).run()

    try:
        with serving(settings, registry):
            await run_until(work(), stopped.wait())
        log.info("stopped")
    finally:
        await background.close(0)
        await webhooks.close()
        await batches.close()
        await directory.close()
        await announcer.close()
        await asyncio.to_thread(documents.close)
        await of_batches.close()
        await watched.close()
        await queue.close()
        await pubsub.close()
        await db.close()


def acceptor_of_lines(
    db: Database, sealer: SharedSealer, catalogs: PermittedCatalogs, documents: DocumentReader, settings: Settings
) -> RequestAcceptor:
    """Returns what accepts lines of batches: they name no files by URL, and no limit on requests a minute holds."""
    attachments = Attachments(db, documents, None, settings.max_body_bytes, shares=settings.asks_for_keys)
    references = ReferenceResolver(db, sealer, attachments, settings)
    return RequestAcceptor(db, sealer, references, catalogs, RegisteredModels(db), None, settings)


def _models(settings: Settings) -> Mapping[str, str]:
    """The models of the models file by queue, as it is now; none if it cannot be read."""
    with suppress(ConfigError):
        return {model.queue: model.name for model in load_models(settings.models).models}
    return {}


def main() -> int:
    try:
        settings = load_settings()
        settings.check_metrics()
        setup_logging(settings.log_level, settings.log_format, "maintenance")
        asyncio.run(maintain(settings))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
