"""The API as an ASGI app: `uvicorn --factory app.main:create_app`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from app.access.directory import Directory
from app.api import openapi, routes
from app.api.authentication import AuthenticationMiddleware
from app.api.dependencies import Runtime, State
from app.api.errors import add_error_handlers
from app.api.limits import Limits
from app.api.middleware import HeadMiddleware, HostMiddleware, RequestIdMiddleware, cross_origin
from app.api.readiness import RecentReadiness
from app.api.shutdown import Shutdown, set_by_signals
from app.queue.publisher import TaskQueue
from app.responses.conversations import ConversationService
from app.responses.create.references import ReferenceLimits, ReferenceResolver
from app.responses.models.catalog import PermittedCatalogs
from app.responses.read.canceller import ResponseCanceller
from app.responses.read.reader import ResponseReader
from app.responses.service import ResponseService
from app.store.database import Database
from app.store.keys import SharedSealer, pubsub_key
from app.streaming.pubsub import PubSub
from config.collector import freeze_gc
from config.logging import setup_logging
from config.models import ModelCatalog, load_catalog
from config.settings import ConfigError, Settings, load_settings

DESCRIPTION = "A self-hosted Responses API whose work outlives connections, processes and GPUs."


def create_app(settings: Settings | None = None, catalog: ModelCatalog | None = None) -> FastAPI:
    """Returns the app. Without `settings` it reads them from the environment; bad ones end the process with one line.

    Connects to nothing. The lifespan does so, and waits neither for Postgres nor for Redis.
    """
    try:
        if settings is None:
            settings = load_settings()
            setup_logging(settings.log_level)
        catalog = catalog or load_catalog(settings)
        _ = settings.database_dsn, settings.broker_url  # Raise ConfigError if they are not set.
        settings.check_auth()
    except ConfigError as error:
        raise SystemExit(f"longhaul: {error}") from None
    app = FastAPIOffline(
        title="Longhaul",
        version=version("longhaul"),
        description=DESCRIPTION,
        lifespan=partial(_lifespan, settings=settings, catalog=catalog),
        redirect_slashes=False,
        redoc_url=None,
        static_url="/docs/static",
        # `include_router` would make every route a second time: 0.25 s of CPU at each start.
        routes=[route for router in routes.ROUTERS for route in router.routes],
    )
    add_error_handlers(app)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthenticationMiddleware, auth=settings.auth)
    app.add_middleware(HostMiddleware, allowed={settings.host.lower(), *settings.allowed_hosts})
    app.add_middleware(RequestIdMiddleware)
    if settings.cors_origins:
        app.add_middleware(cross_origin, allow_origins=settings.cors_origins)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(_: FastAPI, *, settings: Settings, catalog: ModelCatalog) -> AsyncIterator[State]:
    db = Database(settings.database_dsn, settings.database_pool)
    pubsub = PubSub(settings.broker_url, pubsub_key(db))
    queue = TaskQueue(settings)
    sealer = SharedSealer(db)
    references = ReferenceResolver(db, sealer, ReferenceLimits(settings.max_body_bytes, settings.max_context_bytes))
    directory = Directory(db, pubsub)
    asks_for_keys = settings.auth == "keys"
    catalogs = PermittedCatalogs(catalog, directory if asks_for_keys else None)
    reader = ResponseReader(db, pubsub, settings)
    canceller = ResponseCanceller(db, pubsub, queue, reader)
    responses = ResponseService(db, sealer, references, pubsub, queue, catalogs, reader, canceller, settings)
    conversations = ConversationService(db, references, settings)
    shutdown = Shutdown()
    await pubsub.start()
    if asks_for_keys:
        directory.start()
    freeze_gc()
    try:
        with set_by_signals(shutdown):
            started_at = int(time.time())
            runtime = Runtime(
                settings=settings,
                catalog=catalog,
                db=db,
                pubsub=pubsub,
                responses=responses,
                reader=reader,
                canceller=canceller,
                conversations=conversations,
                shutdown=shutdown,
                catalogs=catalogs,
                readiness=RecentReadiness(db, pubsub, catalog),
                started_at=started_at,
            )
            yield State(runtime=runtime, limits=Limits.of(settings), directory=directory)
    finally:
        await directory.close()
        await responses.close()
        await canceller.close()
        await queue.close()
        await pubsub.close()
        await db.close()
