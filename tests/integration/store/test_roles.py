"""Each kind of process may do what its code does, and nothing else: what is tried beyond that, Postgres refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, text

from app.api.errors import api_error_of
from app.store import database
from app.store.database import Database, StoreMismatch, StoreUnavailable
from app.store.keys import SharedSealer, pubsub_key, salt_key
from app.store.roles import granting
from app.store.roles.rights import (
    API,
    FUNCTIONS,
    MAINTENANCE,
    MONITOR,
    PROCESSES,
    RIGHTS,
    ROLES,
    WORKER,
    wanted,
)
from app.store.sealing import SealedKind
from tests.integration.store.common import scalar, sql
from tests.support.rows import queued
from tests.support.services import AS_OWNER
from tests.support.statements import Statements

_RELATIONS = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
"""
_FUNCTIONS = """
    SELECT p.oid::regprocedure::text AS name, p.prosecdef, p.proconfig, p.prorettype = 'trigger'::regtype AS of_trigger,
        has_function_privilege('public', p.oid, 'EXECUTE') AS is_open
    FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
"""

AUDITED = """
    INSERT INTO audit_logs (id, effective_at, type, resource, details)
    VALUES ('audit_old', now() - interval '40 days', 'project.created', 'a', '{}'),
        ('audit_new', now() - interval '29 days', 'project.created', 'a', '{}')
"""
NEW_ADMIN = """
    INSERT INTO api_keys (id, name, hash, shown, scopes, created_at)
    VALUES ('key', 'a', sha256('mine'), 'a', '{admin}', now())
"""
CONVERSATION = "INSERT INTO conversations (id, project, metadata, created_at) VALUES ('a', 'default', '{}', now())"
FORBIDDEN = {
    API: (
        "UPDATE audit_logs SET actor = 'somebody'",
        "DELETE FROM audit_logs",
        "SELECT delete_audit_entries(now(), 1000)",
        "DELETE FROM api_keys",
        "DELETE FROM projects",
        "DELETE FROM keys",
        "UPDATE workers SET slots = 0",
        "UPDATE chunks SET frames = ''",
    ),
    WORKER: (
        NEW_ADMIN,
        "UPDATE api_keys SET scopes = '{admin}'",
        "DELETE FROM api_keys",
        "SELECT hash FROM api_keys",
        "SELECT FROM api_keys",
        "SELECT id FROM audit_logs",
        "INSERT INTO audit_logs (id, effective_at, type, resource, details) VALUES ('a', now(), 'a', 'a', '{}')",
        "UPDATE audit_logs SET actor = 'somebody'",
        "DELETE FROM audit_logs",
        "SELECT delete_audit_entries(now(), 1000)",
        "INSERT INTO keys VALUES ('sealing', '1')",
        "DELETE FROM keys",
        "UPDATE projects SET weight = 1000",
        "UPDATE limits SET value = 1",
        "INSERT INTO responses (id) VALUES ('resp_1')",
        "DELETE FROM responses",
        "UPDATE conversations SET project = 'default'",
        "DELETE FROM conversation_items",
    ),
    MAINTENANCE: (
        "SELECT hash FROM api_keys",
        "UPDATE api_keys SET hash = sha256('mine')",
        "UPDATE api_keys SET scopes = '{admin}'",
        NEW_ADMIN,
        "SELECT id FROM audit_logs",
        "UPDATE audit_logs SET actor = 'somebody'",
        "DELETE FROM audit_logs",
        "INSERT INTO keys VALUES ('sealing', '1')",
        "UPDATE projects SET weight = 1000",
        "UPDATE conversation_items SET item = '{}'",
        "UPDATE usage_entries SET output_tokens = 0",
    ),
    MONITOR: (
        "SELECT request FROM responses",
        "SELECT output FROM responses",
        "SELECT metadata FROM conversations",
        "SELECT frames FROM chunks",
        "SELECT item FROM conversation_items",
        "SELECT id FROM api_keys",
        "SELECT value FROM keys",
        "SELECT id FROM audit_logs",
        "UPDATE responses SET status = 'failed'",
        "DELETE FROM workers",
        "SELECT delete_audit_entries(now(), 1000)",
    ),
}


@asynccontextmanager
async def as_role(services: Any, role: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(services.url_of(role))
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def as_owner(db: Database) -> AsyncIterator[Any]:
    async with db.begin() as connection:
        await connection.execute(text(AS_OWNER))
        yield connection


async def test_every_table_view_and_function_of_the_schema_is_decided(db: Database) -> None:
    found, functions = {row.relname for row in await sql(db, _RELATIONS)}, await sql(db, _FUNCTIONS)
    assert found == set(RIGHTS), "app/store/roles/rights.py decides for each role"
    named = {name.replace("timestamptz", "timestamp with time zone").replace(", ", ",") for name in FUNCTIONS}
    as_owner = [row for row in functions if row.prosecdef]
    assert {row.name for row in as_owner if not row.of_trigger} == named
    for row in as_owner:
        assert not row.is_open, row.name
        assert row.proconfig == ["search_path=public, pg_temp"], row.name


@pytest.mark.parametrize("role", FORBIDDEN)
async def test_postgres_refuses_what_is_not_a_role_s_work(services: Any, db: Database, role: str) -> None:
    async with as_role(services, role) as connection:
        for statement in FORBIDDEN[role]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
                pytest.fail(f"{role} may: {statement}")


async def test_a_missing_right_or_column_is_an_error_of_the_log_and_no_outage(
    services: Any, db: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_mismatches", {})
    worker = Database(services.url_of(WORKER), 1)
    for statement, says in (
        ("SELECT hash FROM api_keys", "permission denied for table api_keys"),
        ("SELECT of_tomorrow FROM responses", 'column "of_tomorrow" does not exist'),
    ):
        for _ in range(3):
            with pytest.raises(StoreMismatch, match=says) as caught:
                await worker.execute(text(statement))
        error = api_error_of(caught.value)
        assert error is not None and error.status == 500
        assert [each.levelname for each in caplog.records if says in each.getMessage()] == ["ERROR"]
    await worker.close()


def test_what_a_role_may_not_do_of_what_its_process_can_run_is_found(services: Any, migrated: str) -> None:
    """What keeps every other test honest (tests/support/statements.py)."""
    found = Statements(services)
    for statement in ("SELECT item FROM conversation_items", "DELETE FROM conversation_items", "DELETE FROM projects"):
        found.note(("app.store.context.items", "find_items"), statement)
    refused = sorted(each.partition(", ")[0] + each.rpartition(" table ")[2] for each in found.refused())
    assert refused == [f"{API}projects", f"{MAINTENANCE}conversation_items", f"{MAINTENANCE}projects"]
    assert found.refused() == []
    found.close()


async def test_each_process_reads_the_keys_that_it_uses_and_sees_no_other(services: Any, db: Database) -> None:
    await sql(db, "INSERT INTO keys VALUES ('of_a_later_version', 'a') ON CONFLICT DO NOTHING")
    seen = {}
    for role in PROCESSES:
        async with as_role(services, role) as connection:
            seen[role] = {row["name"] for row in await connection.fetch("SELECT name FROM keys")}
    assert {name.partition("ing")[0] for name in seen[MAINTENANCE]} == {"pubsub", "cache_salt", "seal"}
    assert {name.partition("_")[0].partition("ing")[0] for name in seen[WORKER]} == {"pubsub", "seal"}
    assert seen[API] >= {"pubsub", "seal", "cache_salt", "of_a_later_version"}
    worker = Database(services.url_of(WORKER), 1)
    assert await pubsub_key(worker)() == await pubsub_key(db)()
    sealed = (await SharedSealer(db).get("default")).seal(SealedKind.REASONING, "a")
    assert (await SharedSealer(worker).get("default")).unseal(SealedKind.REASONING, sealed) == "a"
    with pytest.raises(StoreUnavailable, match="'cache_salt' is missing"):
        await salt_key(worker)()
    await worker.close()
    async with as_owner(db) as connection:
        await connection.execute(text("DELETE FROM keys WHERE name = 'of_a_later_version'"))


async def test_maintenance_deletes_old_entries_of_the_audit_log_and_never_recent_ones(
    services: Any, db: Database
) -> None:
    await sql(db, AUDITED)
    async with as_role(services, MAINTENANCE) as connection:
        deleting = "SELECT delete_audit_entries($1, 1000)"
        now = await connection.fetchval("SELECT now()")
        assert await connection.fetchval("SELECT delete_audit_entries(now() - interval '50 days', 1000)") == 0
        assert await connection.fetchval(deleting, now) == 1
        assert await connection.fetchval("SELECT delete_audit_entries(now() + interval '50 days', 1000)") == 0
    assert await scalar(db, "SELECT array_agg(id) FROM audit_logs") == ["audit_new"]


async def test_a_temporary_table_is_not_taken_for_one_of_the_schema(services: Any, db: Database) -> None:
    """A role that may make temporary tables has the triggers' notes go where they belong all the same."""
    response_id = await queued(db)
    async with as_owner(db) as connection:
        await connection.execute(text("CREATE TEMPORARY TABLE stored_changes (project text, bytes bigint)"))
        await connection.execute(text("DELETE FROM responses WHERE id = :id"), {"id": response_id})
        await connection.execute(text(CONVERSATION))
        assert (await connection.execute(text("SELECT count(*) FROM pg_temp.stored_changes"))).scalar_one() == 0
        assert (await connection.execute(text("SELECT count(*) FROM public.stored_changes"))).scalar_one() > 0
        await connection.rollback()


async def test_migrating_again_corrects_what_was_granted_and_else_changes_nothing(db: Database) -> None:
    versions = "SELECT max(xmin::text::bigint) FROM pg_class WHERE relnamespace = 'public'::regnamespace"

    def changed(connection: Connection) -> bool:
        before = connection.execute(text(versions)).scalar_one()
        granting.grant(connection)
        return bool(connection.execute(text(versions)).scalar_one() != before)

    wrong = (
        f"GRANT DELETE ON audit_logs TO {API}",
        f"REVOKE SELECT ON responses FROM {WORKER}",
        f"GRANT UPDATE (hash) ON api_keys TO {MAINTENANCE}",
        f"GRANT EXECUTE ON FUNCTION delete_audit_entries(timestamptz, integer) TO {API}",
        f"DROP POLICY {WORKER} ON keys",
        f"ALTER POLICY {MAINTENANCE} ON keys USING (true)",
        f"COMMENT ON POLICY {MAINTENANCE} ON keys IS 'true'",
    )
    may_call = f"SELECT has_function_privilege('{API}', 'delete_audit_entries(timestamptz, integer)', 'EXECUTE')"
    policy = f"SELECT qual FROM pg_policies WHERE tablename = 'keys' AND policyname = '{MAINTENANCE}'"
    async with as_owner(db) as connection:
        assert not await connection.run_sync(changed)
        for statement in wrong:
            await connection.execute(text(statement))
        await connection.run_sync(granting.grant)
        for role in ROLES:
            held = await connection.execute(granting.HELD, {"role": role, "tables": list(RIGHTS)})
            assert {tuple(row) for row in held} == wanted(role), role
        right_policy = "(name ~ '^(pubsub|cache_salt|seal)'::text)"
        assert (await connection.execute(text(policy))).scalar_one() == right_policy
        assert not (await connection.execute(text(may_call))).scalar_one()
        assert not await connection.run_sync(changed)


async def test_each_role_has_its_rights_and_no_other(services: Any, db: Database) -> None:
    for role in ROLES:
        own = Database(services.url_of(role), 1)
        rows = {tuple(row) for row in await own.execute(granting.HELD, {"role": None, "tables": list(RIGHTS)})}
        await own.close()
        assert rows == wanted(role), role
