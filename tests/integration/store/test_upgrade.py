"""Databases of other versions: what is upgraded, what is refused, and who claims which rows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text
from typer.testing import CliRunner

from app.aio import end_tasks
from app.cli import cli
from app.protocol.status import Status
from app.store import migrate as migrations
from app.store.database import Database, StatementTimeout
from app.store.layout import LAYOUT
from app.store.migrate import SchemaTooOld, head, migrate, revision, wait_for_schema
from app.store.queue import workers
from app.store.responses import claims, endings
from tests.integration.store.common import scalar, sql
from tests.support import next_version
from tests.support.logs import row_of
from tests.support.rows import WORKER, alive, claim, claimed, queued
from tests.support.waiting import until


@pytest.fixture
async def empty(services: Any) -> AsyncIterator[Database]:
    """An empty database of its own."""
    async with other_database(services, "template0") as db:
        yield db


@pytest.fixture(scope="module")
def template(services: Any) -> Iterator[str]:
    """A database at this version's revision, to be copied: to migrate costs three times as much."""
    with asyncio.Runner() as runner:

        async def make() -> None:
            async with other_database(services, "template0", "migrated_once", stays=True) as db:
                await migrate(db)

        runner.run(make())
        yield "migrated_once"
        runner.run(drop(services, "migrated_once"))


@pytest.fixture
async def old(services: Any, template: str) -> AsyncIterator[Database]:
    """A database at this version's revision."""
    async with other_database(services, template) as db:
        yield db


@asynccontextmanager
async def other_database(
    services: Any, template: str, name: str = "other", *, stays: bool = False
) -> AsyncIterator[Database]:
    await drop(services, name)
    server = Database(services.owner_url, 1)
    await server.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    await server.close()
    db = Database(make_url(services.owner_url).set(database=name).render_as_string(hide_password=False))
    yield db
    await db.close()
    if not stays:
        await drop(services, name)


async def drop(services: Any, name: str) -> None:
    server = Database(services.owner_url, 1)
    await server.execute(text(f"DROP DATABASE IF EXISTS {name}"))
    await server.close()


@pytest.fixture
def next_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the migrations of the next version from here on."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.MIGRATIONS, folder)
    next_version.add_migration(folder)
    monkeypatch.setattr(migrations, "MIGRATIONS", folder)


async def set_revision(db: Database, to: str) -> None:
    await sql(db, "CREATE TABLE IF NOT EXISTS alembic_version (version_num text PRIMARY KEY)")
    await sql(db, "DELETE FROM alembic_version")
    await sql(db, "INSERT INTO alembic_version VALUES (:to)", to=to)


async def test_a_database_of_a_version_before_0_3_is_refused_and_stays_as_it_is(empty: Database) -> None:
    for of_0_2 in ("0001", "0003", "0010"):
        await set_revision(empty, of_0_2)
        with pytest.raises(SchemaTooOld, match=f"revision {of_0_2}, of a version before 0.3.0.*DATABASE_URL"):
            await migrate(empty)
        assert await revision(empty) == of_0_2
    env = {"DATABASE_URL": empty._url}
    refused = await asyncio.to_thread(CliRunner().invoke, cli, ["migrate"], env=env)
    assert refused.exit_code == 1
    [line] = refused.stderr.splitlines()
    assert line.startswith("longhaul: the database's schema cannot be brought up to date: it has revision 0010")


async def test_a_migration_that_waits_for_a_backup_does_not_hold_up_the_others_and_has_no_time_out(
    old: Database, next_migrations: None
) -> None:
    """A backup reads every table in one transaction, and the migration needs those tables alone."""
    response_id = await queued(old)
    hasty = Database(old._url, 1, statement_seconds=0.2, driver_seconds=0.2)
    with pytest.raises(StatementTimeout):
        await hasty.execute(text("SELECT pg_sleep(60)"))

    async def waits_for_longer() -> bool:
        waiting = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND now() - query_start > interval '.9 s'"
        )
        return bool(await sql(old, waiting))

    async with old.begin() as backup:
        await backup.execute(text("LOCK TABLE responses IN ACCESS SHARE MODE"))
        migration = asyncio.create_task(migrate(hasty))
        await until(waits_for_longer)
        assert await scalar(old, "SELECT id FROM responses") == response_id
        assert not migration.done()
    await migration
    assert await revision(old) == head() == next_version.NEXT_REVISION
    await hasty.close()


async def set_layout(db: Database, response_id: str, number: int) -> None:
    await sql(db, "UPDATE responses SET layout = :layout WHERE id = :id", layout=number, id=response_id)


async def test_a_worker_leaves_a_later_layout_to_a_newer_one_and_everybody_may_cancel_it(db: Database) -> None:
    waiting, released = await queued(db), (await claimed(db)).id
    await claims.release(db, released, 1, WORKER)
    for response_id, status, attempt in ((waiting, Status.QUEUED, 0), (released, Status.IN_PROGRESS, 1)):
        await set_layout(db, response_id, LAYOUT + 1)
        assert await claim(db, response_id, "another") is None
        row = await row_of(db, response_id)
        assert (row.status, row.attempt) == (status, attempt)
        ended = await endings.cancel(db, response_id, None)
        assert ended is not None and ended.row.status is Status.CANCELLED


async def test_a_claim_makes_a_log_one_of_this_version_which_older_workers_leave_alone(db: Database) -> None:
    response_id = await queued(db)
    await set_layout(db, response_id, LAYOUT - 1)
    assert await claim(db, response_id, WORKER) is not None
    assert await scalar(db, "SELECT layout FROM responses") == LAYOUT


async def test_living_workers_that_are_no_older_make_an_api_ready(db: Database) -> None:
    await alive(db, "newer", model="one")
    await alive(db, "gone", lease_seconds=0.0, model="three")
    await alive(db, "older", model="two")
    await sql(db, f"UPDATE workers SET layout = {LAYOUT - 1} WHERE id = 'older'")
    assert await workers.ready_models(db) == {"one"}


class TestSchemasOfOtherVersions:
    async def test_a_process_starts_with_a_later_schema_that_works_for_it_and_waits_if_one_took_something_away(
        self, old: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        await set_revision(old, "9998")
        await wait_for_schema(old)
        await sql(old, "CREATE OR REPLACE VIEW oldest_revision AS SELECT CAST('9997' AS text) AS revision")
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
