"""A migrated, empty database for each test, on real services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import migrate
from app.streaming.pubsub import PubSub

TABLES = (
    "responses, conversations, workers, api_keys, service_accounts, audit_logs, "
    "limits, settlements, usage, usage_entries, flows, queues"
)
PLAIN_PROJECT = (
    "models = NULL, tool_servers = NULL, denied_models = '{}', denied_tools = '{}', name = 'default', "
    "top_tier = 'priority', weight = 1"
)


@pytest.fixture
async def db(services: Any) -> AsyncIterator[Database]:
    database = Database(services.database_url, 10)
    await migrate(database)
    async with database.begin() as connection:
        await connection.execute(text(f"TRUNCATE {TABLES} CASCADE"))
        await connection.execute(text("DELETE FROM projects WHERE id <> 'default'"))
        await connection.execute(text(f"UPDATE projects SET {PLAIN_PROJECT}"))
    yield database
    await database.close()


@pytest.fixture
async def pubsub(services: Any, db: Database) -> AsyncIterator[PubSub]:
    started = PubSub(services.redis_url, pubsub_key(db))
    await started.start()
    yield started
    await started.close()
