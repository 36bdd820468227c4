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
from app.store.database import Database
from app.store.migrate import _config, _upgrade
from app.store.tables import metadata
from tests.integration.store.common import sql
from tests.support.rows import queued
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


async def test_the_migrated_schema_is_that_of_the_tables_and_alembic_finds_nothing_to_migrate(
    in_transaction: AsyncConnection,
) -> None:
    assert await in_transaction.run_sync(differences) == []
    migrated = await schema_of(in_transaction, "public")
    await in_transaction.execute(text(f"CREATE SCHEMA {DECLARED}"))
    await in_transaction.execute(text(f"SET LOCAL search_path = {DECLARED}"))
    await in_transaction.run_sync(metadata.create_all)
    declared = await schema_of(in_transaction, DECLARED)
    assert (sorted(migrated - declared), sorted(declared - migrated)) == ([], [])
    assert len(declared) > 200


async def test_the_migrations_can_be_undone_and_done_again(db: Database) -> None:
    async with db.begin() as connection:
        await connection.execute(text(AS_OWNER))
        await connection.run_sync(lambda sync: command.downgrade(_config(sync), "base"))
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


CONVERSATION = "INSERT INTO conversations (id, project, metadata, created_at) VALUES (:id, 'nobody', '{}', now())"
AUDITED = """
    INSERT INTO audit_logs (id, project, effective_at, type, resource, details)
    VALUES (:id, 'nobody', now(), 't', 'r', '{}')
"""
FINAL = """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    SELECT :id, n, n, 1, true, '', '', 0 FROM generate_series(98, 99) n
"""
FORBIDDEN = [
    ("responses_reserved_all_or_none", RESPONSE.format("reserved_at = now()")),
    ("responses_reserved_all_or_none", RESPONSE.format("reserved_input = 1, reserved_output = 1")),
    ("responses_priority_known", RESPONSE.format("priority = 4")),
    ("responses_place_in_chain", RESPONSE.format("chain_length = 0")),
    ("responses_cost_not_negative", RESPONSE.format("cost = -1")),
    ("responses_", RESPONSE.format("status = 'cancelled'")),  # a final row without its time
    ("responses_", RESPONSE.format("finished_at = now()")),  # a time without a final row
    ("responses_", "UPDATE responses SET error = '{}' WHERE id = :id"),  # an error without a failure
    ("responses_", RESPONSE.format("worker = 'w'")),  # an owner while queued
    ("responses_", RESPONSE.format("status = 'paused'")),
    ("responses_", RESPONSE.format("status = 'in_progress', started_at = now()")),  # without an attempt
    ("api_keys_scopes_known", KEY.format("'{everything}'")),
    ("api_keys_scopes_known", KEY.format("'{}'")),
    ("limits_kind_known", LIMIT.format("'tokens_per_year', 1")),
    ("limits_value_in_bounds", LIMIT.format("'tokens_per_day', 0")),
    ("limits_value_in_bounds", LIMIT.format("'tokens_per_day', 9007199254740991")),
    ("workers_engine_has_room", WORKER.format("4096, -1, 'chat'")),
    ("workers_engine_has_room", WORKER.format("0, 1, 'chat'")),
    ("workers_format_known", WORKER.format("4096, 1, 'auto'")),
    ("conversations_project_fkey", CONVERSATION),
    ("audit_logs_project_fkey", AUDITED),
    ("chunks_final_idx", FINAL),
]


async def test_postgres_refuses_what_must_not_be(db: Database) -> None:
    response_id = await queued(db)
    for constraint, statement in FORBIDDEN:
        with pytest.raises(IntegrityError, match=constraint):
            await sql(db, statement, id=response_id)
            pytest.fail(f"Postgres takes {statement}")


async def test_every_scope_is_one_that_postgres_knows(db: Database) -> None:
    for scope in Scope:
        project = "NULL" if scope in {Scope.ADMIN, Scope.OPERATOR} else "'default'"
        key = KEY.replace("'default'", project).replace("sha256('a')", f"sha256('{scope.value}')")
        await sql(db, key.format(f"'{{{scope.value}}}'"), id=scope.value)
