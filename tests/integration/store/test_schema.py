"""The migrated schema is that of `app.store.tables`."""

from __future__ import annotations

from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from app.store.database import Database
from app.store.migrate import _config
from app.store.tables import metadata


def differences(connection: Connection) -> list[Any]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


async def test_the_migrated_schema_is_that_of_the_tables(db: Database) -> None:
    async with db.begin() as connection:
        assert await connection.run_sync(differences) == []


async def test_the_newest_migration_can_be_undone_and_done_again(db: Database) -> None:
    async with db.begin() as connection:
        await connection.run_sync(lambda sync: command.downgrade(_config(sync), "-1"))
        assert await connection.run_sync(differences) != []
        await connection.run_sync(lambda sync: command.upgrade(_config(sync), "head"))
        assert await connection.run_sync(differences) == []
