"""A migrated, empty database for each test, on real services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import migrate
from app.streaming.pubsub import PubSub
from tests.support.roles import close_roles
from tests.support.services import AS_OWNER
from tests.support.tenants import Tenant, administration, tenant

TABLES = (
    "responses, conversations, workers, api_keys, service_accounts, audit_logs, bulk_actions, "
    "limits, settlements, stored_changes, usage, usage_entries, flows, queues, drains, pauses, "
    "files, uploads, file_parts, batches, batch_results"
)
EMPTY = f"""
DO $$
DECLARE
    name text;
    is_filled bool;
    filled text[];
BEGIN
    FOREACH name IN ARRAY string_to_array('{TABLES}', ', ') LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO is_filled;
        IF is_filled THEN filled := filled || name; END IF;
    END LOOP;
    IF filled IS NOT NULL THEN EXECUTE format('TRUNCATE %s CASCADE', array_to_string(filled, ', ')); END IF;
END $$
"""
"""Truncates the tables that have rows: most have none, and all of them take 20 ms of CPU."""
PLAIN_PROJECT = (
    "models = NULL, tool_servers = NULL, denied_models = '{}', denied_tools = '{}', name = 'default', "
    "top_tier = 'priority', weight = 1, stored_bytes = 0, "
    "conversation_days = NULL, erase_at = NULL, erased_at = NULL"
)


@pytest.fixture(scope="session")
def migrated(services: Any) -> str:
    """The URL of the session's database, with the newest schema, for one role with the rights of all processes."""

    async def make() -> None:
        database = Database(services.owner_url, 1)
        await migrate(database)
        await database.close()

    asyncio.run(make())
    url: str = services.database_url
    return url


@pytest.fixture
async def db(migrated: str) -> AsyncIterator[Database]:
    database = Database(migrated, 10)
    async with database.begin() as connection:
        await connection.execute(text(AS_OWNER))
        await connection.execute(text(EMPTY))
        await connection.execute(text("DELETE FROM projects WHERE id <> 'default'"))
        await connection.execute(text(f"UPDATE projects SET {PLAIN_PROJECT}"))
    yield database
    await close_roles(database)
    await database.close()


@pytest.fixture
async def pubsub(services: Any, db: Database) -> AsyncIterator[PubSub]:
    started = PubSub(services.redis_url, pubsub_key(db))
    await started.start()
    yield started
    await started.close()


@pytest.fixture
def admin(db: Database, pubsub: PubSub) -> Administration:
    return administration(db, pubsub)


@pytest.fixture
async def mine(admin: Administration) -> Tenant:
    """A project, for an API with `auth="keys"`."""
    return await tenant(admin, "mine")
