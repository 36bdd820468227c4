"""The API's routes in this process, beside the services: for an operator's command that names no URL."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx

from app.main import create_app
from config.models import load_catalog
from config.settings import Settings

BASE_URL = "http://localhost"


@contextlib.asynccontextmanager
async def routes_on(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API's routes on the database of the settings, until the block ends.

    It sends no key: whoever has the database's URL is an operator. Raises ConfigError.
    """
    _ = settings.database_dsn, settings.broker_url  # Raise ConfigError if they are not set.
    logging.getLogger("longhaul").addHandler(logging.NullHandler())  # The command itself says what is wrong.
    open_here = settings.model_copy(update={"auth": "open", "host": "127.0.0.1", "metrics_port": None})
    app = create_app(open_here, load_catalog(settings))
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(with_state), base_url=BASE_URL) as http:
            yield http
