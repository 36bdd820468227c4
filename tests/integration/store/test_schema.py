"""The migrated schema is that of `app.store.tables`, and refuses rows that must not be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.access.caller import Scope
from app.protocol.status import Status
from app.store.database import Database
from app.store.migrate import _config, _upgrade
from app.store.responses import logs
from app.store.tables import metadata
from tests.support.rows import Writer, claimed, queued
from tests.support.services import AS_OWNER

DECLARED = "declared"
"""A schema of Postgres with the tables as they are declared."""
_COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity
    FROM information_schema.columns WHERE table_schema = :schema
"""
_CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = CAST(:schema AS regnamespace)
"""
_INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = :schema"
_OF_ALEMBIC = "alembic_version"
_VIEWS = {"oldest_revision", "waiting_responses", "worker_loads"}


def differences(connection: Connection) -> list[Any]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


_OPTIONS = """
    SELECT c.relname, o.option FROM pg_class c CROSS JOIN LATERAL unnest(c.reloptions) AS o(option)
    WHERE c.relnamespace = CAST(:schema AS regnamespace) AND c.relkind = 'r'
"""


async def schema_of(connection: AsyncConnection, schema: str) -> set[tuple[str, ...]]:
    """Columns, constraints, indexes and options of tables, as Postgres writes them."""
    found = set()
    for statement in (_COLUMNS, _CONSTRAINTS, _INDEXES, _OPTIONS):
        for row in await connection.execute(text(statement), {"schema": schema}):
            table, *rest = (str(value).replace(f"{schema}.", "") for value in row)
            if table not in {_OF_ALEMBIC, *_VIEWS}:
                found.add((table, *rest))
    return found


@pytest.fixture
async def in_transaction(db: Database) -> AsyncIterator[AsyncConnection]:
    """A transaction that is undone in the end."""
    async with db.engine.execution_options(isolation_level="READ COMMITTED").connect() as connection:
        await connection.execute(text(AS_OWNER))
        yield connection
        await connection.rollback()


async def test_the_migrated_schema_is_that_of_the_tables(in_transaction: AsyncConnection) -> None:
    migrated = await schema_of(in_transaction, "public")
    await in_transaction.execute(text(f"CREATE SCHEMA {DECLARED}"))
    await in_transaction.execute(text(f"SET LOCAL search_path = {DECLARED}"))
    await in_transaction.run_sync(metadata.create_all)
    declared = await schema_of(in_transaction, DECLARED)
    assert (sorted(migrated - declared), sorted(declared - migrated)) == ([], [])
    assert len(declared) > 200


async def test_alembic_finds_nothing_to_migrate(in_transaction: AsyncConnection) -> None:
    assert await in_transaction.run_sync(differences) == []


async def test_the_newest_migration_can_be_undone_and_done_again(db: Database) -> None:
    async with db.begin() as connection:
        await connection.execute(text(AS_OWNER))
        await connection.run_sync(lambda sync: command.downgrade(_config(sync), "-1"))
        assert await connection.run_sync(differences) != []
        await connection.run_sync(_upgrade)
        assert await connection.run_sync(differences) == []


RESPONSE = "UPDATE responses SET {} WHERE id = :id"
KEY = """
    INSERT INTO api_keys (id, project, name, hash, shown, scopes, created_at)
    VALUES (:id, 'default', 'a', sha256('a'), 'a', {}, now())
"""
LIMIT = "INSERT INTO limits (project, model, kind, value, since, as_of) VALUES ('default', :id, {}, now(), now())"
WORKER = """
    INSERT INTO workers
        (id, node, model, queue, host, pid, started_at, lease_until, layout, context_length, slots, format)
    VALUES (:id, 'n', 'm', 'q', 'h', 1, now(), now(), 1, {})
"""


@pytest.mark.parametrize(
    ("constraint", "statement"),
    [
        ("responses_reserved_all_or_none", RESPONSE.format("reserved_at = now()")),
        ("responses_reserved_all_or_none", RESPONSE.format("reserved_input = 1, reserved_output = 1")),
        ("responses_priority_known", RESPONSE.format("priority = 4")),
        ("responses_place_in_chain", RESPONSE.format("chain_length = 0")),
        ("responses_cost_not_negative", RESPONSE.format("cost = -1")),
        ("api_keys_scopes_known", KEY.format("'{everything}'")),
        ("api_keys_scopes_known", KEY.format("'{}'")),
        ("limits_kind_known", LIMIT.format("'tokens_per_year', 1")),
        ("limits_value_in_bounds", LIMIT.format("'tokens_per_day', 0")),
        ("limits_value_in_bounds", LIMIT.format("'tokens_per_day', 9007199254740991")),
        ("workers_engine_has_room", WORKER.format("4096, -1, 'chat'")),
        ("workers_engine_has_room", WORKER.format("0, 1, 'chat'")),
        ("workers_format_known", WORKER.format("4096, 1, 'auto'")),
    ],
)
async def test_postgres_refuses_what_must_not_be(db: Database, constraint: str, statement: str) -> None:
    response_id = await queued(db)
    with pytest.raises(IntegrityError, match=constraint):
        async with db.begin() as connection:
            await connection.execute(text(statement), {"id": response_id})


@pytest.mark.parametrize("table", ["conversations", "audit_logs"])
async def test_what_belongs_to_a_project_names_one_that_exists(db: Database, table: str) -> None:
    columns = {
        "conversations": "(id, project, metadata, created_at) VALUES ('a', 'nobody', '{}', now())",
        "audit_logs": (
            "(id, project, effective_at, type, resource, details) VALUES ('a', 'nobody', now(), 't', 'r', '{}')"
        ),
    }
    with pytest.raises(IntegrityError, match=f"{table}_project_fkey"):
        async with db.begin() as connection:
            await connection.execute(text(f"INSERT INTO {table} {columns[table]}"))


async def test_a_log_has_one_final_chunk(db: Database) -> None:
    writer = Writer(await claimed(db))
    await logs.append(db, [writer.begin()])
    assert await logs.append(db, [writer.finish()]) == {writer.row.id}
    another = """
        INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
        VALUES (:id, 99, 99, 1, true, '', '', 0)
    """
    with pytest.raises(IntegrityError, match="chunks_final_idx"):
        async with db.begin() as connection:
            await connection.execute(text(another), {"id": writer.row.id})
    assert Status((await logs.read(db, writer.row.id)).status) is Status.COMPLETED


@pytest.mark.parametrize("scope", Scope)
async def test_every_scope_is_one_that_postgres_knows(db: Database, scope: Scope) -> None:
    project = "NULL" if scope in {Scope.ADMIN, Scope.OPERATOR} else "'default'"
    statement = KEY.replace("'default'", project).format(f"'{{{scope.value}}}'")
    async with db.autocommit() as connection:
        await connection.execute(text(statement), {"id": scope.value})
