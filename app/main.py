"""The API as an ASGI app: `uvicorn --factory app.main:create_app`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry

from app.access.charges import Charges
from app.access.directory import Directory
from app.aio import BackgroundTasks
from app.announcer import Announcer
from app.api import openapi, routes
from app.api.authentication import AuthenticationMiddleware
from app.api.dependencies import Runtime, State
from app.api.errors import add_error_handlers
from app.api.holdings import ProcessBounds
from app.api.middleware import HeadMiddleware, HostMiddleware, RequestIdMiddleware, cross_origin, switch_access_log
from app.api.readiness import RecentReadiness
from app.api.shutdown import Shutdown, begun_by_signals
from app.batches.service import BatchService
from app.bounds import Bound
from app.files.attachments import Attachments
from app.files.documents import DocumentReader
from app.files.downloads import Downloads
from app.files.service import FileService
from app.metrics.bounds import BoundsCollector
from app.metrics.instruments import ApiMetrics
from app.metrics.server import serving
from app.queue.publisher import TaskQueue
from app.responses.conversations import ConversationService
from app.responses.create.acceptor import RequestAcceptor
from app.responses.create.references import ReferenceResolver
from app.responses.models.catalog import PermittedCatalogs
from app.responses.models.registered import RegisteredModels
from app.responses.read.canceller import ResponseCanceller
from app.responses.read.reader import ResponseReader
from app.responses.service import ResponseService
from app.store.database import CALLER_SECONDS, Database
from app.store.keys import SharedSealer, pubsub_key
from app.streaming.pubsub import PubSub
from app.webhooks.feed import EventFeed
from app.webhooks.sender import Sender
from app.webhooks.service import WebhookService
from config.logging import setup_logging
from config.logging.handler import gathering_lines
from config.memory import freeze_gc, return_large_blocks
from config.models import ModelCatalog
from config.models_file import ModelsFile
from config.settings import ConfigError, Settings, load_settings
from config.version import VERSION

log = logging.getLogger("longhaul.api")

DESCRIPTION = "A self-hosted Responses API whose work outlives connections, processes and GPUs."


def create_app(settings: Settings | None = None, catalog: ModelCatalog | None = None) -> FastAPI:
    """Returns the app. Without `settings` it reads them from the environment; bad ones end the process with one line.

    Without a `catalog` it follows the models file. Connects to nothing. The lifespan does so, and waits neither for
    Postgres nor for Redis.
    """
    try:
        if settings is None:
            settings = load_settings()
            setup_logging(settings.log_level, settings.log_format, "api")
            switch_access_log(on=settings.log_access)
        models = ModelsFile(settings) if catalog is None else catalog
        _ = settings.database_dsn, settings.broker_url  # Raise ConfigError if they are not set.
        settings.check_auth()
        settings.check_metrics()
    except ConfigError as error:
        raise SystemExit(f"longhaul: {error}") from None
    registry = CollectorRegistry()
    metrics = ApiMetrics(registry if settings.metrics_port is not None else None)
    app = FastAPIOffline(
        title="Longhaul",
        version=VERSION,
        description=DESCRIPTION,
        lifespan=partial(_lifespan, settings=settings, models=models, metrics=metrics, registry=registry),
        redirect_slashes=False,
        redoc_url=None,
        static_url="/docs/static",
        # `include_router` would make every route a second time: 0.25 s of CPU at each start.
        routes=[route for router in routes.ROUTERS for route in router.routes],
    )
    add_error_handlers(app)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthenticationMiddleware, auth=settings.auth, origins=settings.cors_origins)
    app.add_middleware(HostMiddleware, allowed={settings.host.lower(), *settings.allowed_hosts})
    app.add_middleware(RequestIdMiddleware, metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(cross_origin, allow_origins=settings.cors_origins)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(
    _: FastAPI,
    *,
    settings: Settings,
    models: ModelsFile | ModelCatalog,
    metrics: ApiMetrics,
    registry: CollectorRegistry,
) -> AsyncIterator[State]:
    catalog = models.catalog if isinstance(models, ModelsFile) else models
    async with contextlib.AsyncExitStack() as opened:
        runtime, directory, watched = _runtime(opened, settings, catalog, metrics)
        await runtime.pubsub.start()
        if settings.asks_for_keys:
            directory.start()
        freeze_gc()
        return_large_blocks()
        background = BackgroundTasks()
        opened.push_async_callback(background.close, 0)
        if isinstance(models, ModelsFile):
            background.start(runtime.catalogs.follow(models))
        bounds = ProcessBounds.of(settings)
        collector = BoundsCollector([*bounds.all, *watched])
        registry.register(collector)
        opened.callback(registry.unregister, collector)
        # uvicorn ends the process by the signal that it got, so nothing may wait behind the lifespan's end.
        with gathering_lines(), begun_by_signals(runtime.shutdown), serving(settings, registry, settings.api_processes):
            yield State(runtime=runtime, bounds=bounds, directory=directory)


def _runtime(
    opened: contextlib.AsyncExitStack, settings: Settings, catalog: ModelCatalog, metrics: ApiMetrics
) -> tuple[Runtime, Directory, Sequence[Bound]]:
    """Returns what requests are answered with, the keys, and the bounds that metrics show.

    `opened` closes all of it, the last one first.
    """
    shares = settings.asks_for_keys
    documents = DocumentReader(settings.max_body_bytes, shares=shares)
    opened.push_async_callback(asyncio.to_thread, documents.close)
    downloads = Downloads(settings.file_url_hosts, settings.max_body_bytes, shares=shares)
    opened.callback(downloads.close)
    db = Database(settings.database_dsn, settings.database_pool, CALLER_SECONDS)
    key, sealer = pubsub_key(db), SharedSealer(db)
    pubsub, queue = PubSub(settings.broker_url, key), TaskQueue(settings, key)
    reader = ResponseReader(db, pubsub, settings)
    announcer = Announcer(pubsub, queue, metrics.outside_endings)
    canceller = ResponseCanceller(db, announcer, reader)
    directory = Directory(db, pubsub)
    asked = directory if shares else None
    catalogs, charges, registered = PermittedCatalogs(catalog, asked), Charges(db, asked), RegisteredModels(db)
    attachments = Attachments(db, documents, downloads, settings.max_body_bytes, shares=shares)
    references = ReferenceResolver(db, sealer, attachments, settings)
    acceptor = RequestAcceptor(db, sealer, references, catalogs, registered, charges, settings)
    responses = ResponseService(db, acceptor, sealer, pubsub, queue, reader, canceller, settings)
    sender = Sender(settings.webhook_networks, sealer)
    opened.callback(sender.close)
    webhooks = WebhookService(db, pubsub, sealer, sender, shares=shares)
    batches = BatchService(db, pubsub, settings)
    for each in (db, pubsub, queue, reader, announcer, canceller, charges, responses, batches, directory):
        opened.push_async_callback(each.close)
    runtime = Runtime(
        settings=settings,
        db=db,
        pubsub=pubsub,
        responses=responses,
        reader=reader,
        canceller=canceller,
        conversations=ConversationService(db, references, catalogs, settings),
        batches=batches,
        files=FileService(db, catalogs.is_limited),
        webhooks=webhooks,
        feed=EventFeed(db, pubsub, settings.event_retention_seconds),
        charges=charges,
        shutdown=Shutdown(settings.api_grace_seconds),
        catalogs=catalogs,
        registered=registered,
        readiness=RecentReadiness(db, pubsub),
        started_at=int(time.time()),
        metrics=metrics,
    )
    bounds = (
        *reader.bounds,
        documents.bound,
        downloads.bound,
        attachments.bound,
        responses.counter.prompts,
        webhooks.tests,
    )
    return runtime, directory, bounds
