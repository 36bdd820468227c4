"""A migrated, empty database for each test, on real services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from app.access.administration import Administration
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import migrate
from app.streaming.pubsub import PubSub
from tests.support.roles import close_roles
from tests.support.statements import Statements
from tests.support.tenants import Tenant, administration, tenant

TABLES = (
    "chunks, responses, conversation_items, conversations, file_blocks, file_parts, files, batch_results, "
    "batches, workers, api_keys, audit_logs, bulk_actions, flows, queues, drains, pauses, "
    "settlements, stored_changes, usage_entries, usage, limits, webhook_deliveries, webhook_endpoints"
)
"""Each before those that it refers to, and before those that triggers write to when its rows are deleted."""
LARGE_BYTES = 256 * 1024
PLAIN_PROJECT = (
    "models = '{*}', tool_servers = '{*}', name = 'default', top_tier = 'priority', weight = 1, stored_bytes = 0, "
    "conversation_days = NULL, erase_at = NULL, erased_at = NULL"
)
EMPTY = f"""
DO $$
DECLARE
    name text;
    is_filled bool;
BEGIN
    FOREACH name IN ARRAY string_to_array('{TABLES}', ', ') LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO is_filled;
        IF pg_relation_size(name::regclass) > {LARGE_BYTES} THEN EXECUTE format('TRUNCATE %I CASCADE', name);
        ELSIF is_filled THEN EXECUTE format('DELETE FROM %I', name);
        END IF;
    END LOOP;
END $$;
DELETE FROM projects WHERE id <> 'default';
UPDATE projects SET {PLAIN_PROJECT};
"""
"""Truncates what is large: TRUNCATE makes new files for the table and all its indexes, which takes 3 ms of CPU."""


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


class Emptier:
    """Empties the database by one connection, which stays open: a new one for each test takes 20 ms of CPU."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection | None = None

    def empty(self) -> None:
        self._loop.run_until_complete(self._empty())

    async def _empty(self) -> None:
        if self._connection is not None:
            with suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
                await self._connection.execute(EMPTY)
                return
            self._connection.terminate()  # the test before has broken it
        self._connection = await asyncpg.connect(self._url)
        await self._connection.execute(EMPTY)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))  # its socket is closed
        self._loop.close()


@pytest.fixture(scope="session")
def emptier(services: Any, migrated: str) -> Iterator[Emptier]:
    made = Emptier(services.owner_url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def statements(services: Any, migrated: str) -> Iterator[Statements]:
    made = Statements(services)
    made.start()
    yield made
    made.close()


@pytest.fixture
def emptied(migrated: str, emptier: Emptier, statements: Statements) -> Iterator[str]:
    """The URL of `migrated`, whose tables have no rows but that of the default project. After the test every process
    may do what its code did of it."""
    emptier.empty()
    yield migrated
    assert not (refused := statements.refused()), "\n".join(refused)


@pytest.fixture
async def db(emptied: str) -> AsyncIterator[Database]:
    database = Database(emptied, 10)
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
