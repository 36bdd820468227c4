"""An API that asks for keys, an operator's key, and the commands that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.access.administration import Administration
from app.access.caller import Scope
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.integration.operations.here import ShellHere
from tests.support.api import Api, serving, settings_for
from tests.support.batches import Carried, carrying
from tests.support.commands import Shell
from tests.support.player import Player
from tests.support.tenants import as_caller


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(services, tmp_path, auth="keys")) as running:
        yield running


@pytest.fixture
async def operator_key(admin: Administration) -> str:
    return (await admin.create_key(None, "operator", {Scope.OPERATOR})).secret


@pytest.fixture
async def operator(api: Api, operator_key: str) -> AsyncIterator[Api]:
    """The API, called with an operator's key."""
    async with as_caller(api, operator_key) as calling:
        yield calling


@pytest.fixture
async def carried(services: Any, api: Api, pubsub: PubSub) -> AsyncIterator[Carried]:
    async with carrying(services, api, pubsub) as running:
        yield running


@pytest.fixture
def player(db: Database, pubsub: PubSub) -> Player:
    return Player(db, pubsub)


@pytest.fixture
def remote(api: Api, operator_key: str) -> Shell:
    return ShellHere.of(api.url, operator_key)
