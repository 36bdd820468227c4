"""Databases of other versions: what is upgraded, what is refused, and who claims which rows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection
from typer.testing import CliRunner

from app.aio import end_tasks
from app.cli import cli
from app.protocol.status import Status
from app.store import migrate as migrations
from app.store.database import Database, StatementTimeout
from app.store.layout import LAYOUT
from app.store.migrate import SchemaTooOld, head, migrate, revision, wait_for_schema
from app.store.queue import workers
from app.store.responses import claims, endings, lookup
from tests.support import next_version
from tests.support.rows import WORKER, alive, claim, claimed, queued
from tests.support.waiting import until


@pytest.fixture
async def empty(services: Any) -> AsyncIterator[Database]:
    """An empty database of its own."""
    url = make_url(services.owner_url)
    server = Database(url.render_as_string(hide_password=False))
    async with server.autocommit() as connection:
        await connection.execute(text("DROP DATABASE IF EXISTS other WITH (FORCE)"))
        await connection.execute(text("CREATE DATABASE other"))
    db = Database(url.set(database="other").render_as_string(hide_password=False))
    yield db
    await db.close()
    async with server.autocommit() as connection:
        await connection.execute(text("DROP DATABASE other WITH (FORCE)"))
    await server.close()


@pytest.fixture
async def old(empty: Database) -> Database:
    """A database at this version's revision."""
    await migrate(empty)
    return empty


@pytest.fixture
def next_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the migrations of the next version from here on."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.MIGRATIONS, folder)
    next_version.add_migration(folder)
    monkeypatch.setattr(migrations, "MIGRATIONS", folder)


async def set_revision(db: Database, to: str) -> None:
    async with db.autocommit() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS alembic_version (version_num text PRIMARY KEY)"))
        await connection.execute(text("DELETE FROM alembic_version"))
        await connection.execute(text("INSERT INTO alembic_version VALUES (:to)"), {"to": to})


@pytest.mark.parametrize("of_0_2", ["0001", "0003", "0010"])
async def test_a_database_of_a_version_before_0_3_is_refused_and_stays_as_it_is(empty: Database, of_0_2: str) -> None:
    await set_revision(empty, of_0_2)
    with pytest.raises(SchemaTooOld, match=f"revision {of_0_2}, of a version before 0.3.0.*DATABASE_URL"):
        await migrate(empty)
    assert await revision(empty) == of_0_2


async def test_the_command_refuses_such_a_database_in_one_line(empty: Database) -> None:
    await set_revision(empty, "0003")
    env = {"DATABASE_URL": empty._url}
    refused = await asyncio.to_thread(CliRunner().invoke, cli, ["migrate"], env=env)
    assert refused.exit_code == 1
    [line] = refused.stderr.splitlines()
    assert line.startswith("longhaul: the database's schema cannot be brought up to date: it has revision 0003")


async def test_rows_of_the_version_before_are_run_by_the_next_one(old: Database, next_migrations: None) -> None:
    response_id = await queued(old)
    running = await claimed(old)
    await migrate(old)
    assert await revision(old) == next_version.NEXT_REVISION
    await claims.release(old, running.id, running.attempt, WORKER)
    for row_id, attempt in ((response_id, 1), (running.id, 2)):
        row = await claim(old, row_id, "worker-after")
        assert row is not None
        assert row.attempt == attempt


async def test_a_migration_that_waits_for_a_backup_does_not_hold_up_the_others(
    old: Database, next_migrations: None
) -> None:
    """A backup reads every table in one transaction, and the migration needs those tables alone."""
    response_id = await queued(old)
    async with old.begin() as backup:
        await backup.execute(text("LOCK TABLE responses IN ACCESS SHARE MODE"))
        migration = asyncio.create_task(migrate(old))
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'responses'::regclass")
        async with old.autocommit() as other:
            await until(lambda: at_least_one(other, waiting))
            found = await other.execute(text("SELECT id FROM responses WHERE id = :id"), {"id": response_id})
            assert found.scalar_one() == response_id
        assert not migration.done()
    await migration
    assert await revision(old) == head() == next_version.NEXT_REVISION


async def test_a_migration_takes_as_long_as_it_needs(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade = migrations._upgrade

    def slow_upgrade(connection: Connection) -> None:
        upgrade(connection)
        connection.execute(text("SELECT pg_sleep(0.5)"))

    monkeypatch.setattr(migrations, "_upgrade", slow_upgrade)
    hasty = Database(empty._url, 1, statement_seconds=0.2, driver_seconds=0.2)
    with pytest.raises(StatementTimeout):
        await hasty.execute(text("SELECT pg_sleep(0.5)"))
    await migrate(hasty)
    assert await revision(hasty) == head()
    await hasty.close()


async def at_least_one(connection: AsyncConnection, statement: Any) -> bool:
    return bool((await connection.execute(statement)).scalar_one())


async def set_layout(db: Database, response_id: str, number: int) -> None:
    async with db.autocommit() as connection:
        await connection.execute(
            text("UPDATE responses SET layout = :layout WHERE id = :id"), {"layout": number, "id": response_id}
        )


class TestLayouts:
    async def test_a_worker_leaves_a_later_layout_to_a_newer_one(self, db: Database) -> None:
        response_id = await queued(db)
        await set_layout(db, response_id, LAYOUT + 1)
        assert await claim(db, response_id, WORKER) is None
        row = await lookup.find(db, response_id)
        assert row is not None
        assert (row.status, row.attempt) == (Status.QUEUED, 0)

    async def test_a_log_that_a_newer_worker_continued_stays_with_newer_workers(
        self, db: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newest = text(str(claims._CLAIM).replace(f"layout = {LAYOUT}", f"layout = {LAYOUT + 1}"))
        response_id = await queued(db)
        with monkeypatch.context() as patch:
            patch.setattr(claims, "_CLAIM", newest)
            row = await claim(db, response_id, WORKER)
        assert row is not None
        await claims.release(db, response_id, row.attempt, WORKER)
        assert await claim(db, response_id, "another") is None

    async def test_a_later_layout_can_be_cancelled(self, db: Database) -> None:
        response_id = await queued(db)
        await set_layout(db, response_id, LAYOUT + 1)
        ended = await endings.cancel(db, response_id, None)
        assert ended is not None
        assert ended.row.status is Status.CANCELLED

    async def test_older_workers_do_not_make_an_api_ready(self, db: Database) -> None:
        await alive(db, "newer", model="one")
        await alive(db, "older", model="two")
        async with db.autocommit() as connection:
            await connection.execute(text(f"UPDATE workers SET layout = {LAYOUT - 1} WHERE id = 'older'"))
        assert await workers.ready_models(db) == {"one"}


class TestSchemasOfOtherVersions:
    async def test_a_process_starts_with_a_later_schema_that_still_works_for_it(self, old: Database) -> None:
        await set_revision(old, "9998")
        await wait_for_schema(old)

    async def test_a_process_waits_for_ever_if_a_later_schema_took_something_away(
        self, old: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        await set_revision(old, "9998")
        async with old.autocommit() as connection:
            await connection.execute(text("CREATE OR REPLACE VIEW oldest_revision AS SELECT '9997'::text AS revision"))
        await end_tasks(await waits_and_says(old, caplog, "this version is too old for it"))

    async def test_a_process_waits_for_the_migration(
        self, old: Database, next_migrations: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        waiting = await waits_and_says(old, caplog, "run `longhaul migrate`")
        await migrate(old)
        await waiting


async def waits_and_says(db: Database, caplog: pytest.LogCaptureFixture, words: str) -> asyncio.Task[None]:
    caplog.set_level("INFO", "longhaul.store")
    told: list[str] = []
    waiting = asyncio.create_task(wait_for_schema(db, told.append))
    await until(lambda: words in caplog.text)
    assert [words in each for each in told] == [True]
    assert not waiting.done()
    return waiting
