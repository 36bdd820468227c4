"""The API on real services, the official client, and a worker that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.integration.api.common import sdk_of
from tests.support.api import CATALOG, Api, serving, settings_for
from tests.support.batches import Carried, carrying
from tests.support.player import Player
from tests.support.tenants import Tenant, as_caller


@pytest.fixture
async def api(request: pytest.FixtureRequest, services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    """Has the `SETTINGS` and `MODELS` of the test's module; or of its class, if that has any."""
    of = request.cls if hasattr(request.cls, "SETTINGS") else request.module
    settings = settings_for(services, tmp_path, **getattr(of, "SETTINGS", {}))
    async with serving(settings, getattr(of, "MODELS", CATALOG)) as running:
        yield running


@pytest.fixture
def player(db: Database, pubsub: PubSub) -> Player:
    return Player(db, pubsub)


@pytest.fixture
async def calling(api: Api, mine: Tenant) -> AsyncIterator[Api]:
    """The API, called with the project's key."""
    async with as_caller(api, mine) as opened:
        yield opened


@pytest.fixture
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_of(api) as running:
        yield running


@pytest.fixture
async def carried(services: Any, api: Api, pubsub: PubSub) -> AsyncIterator[Carried]:
    async with carrying(services, api, pubsub) as running:
        yield running
