"""Upgrading the schema to the newest revision, and waiting until another process has done so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncpg import InsufficientPrivilegeError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from app.store import keys
from app.store.database import Database, Patience, StoreBusy, StoreLocked, StoreMismatch, StoreUnavailable
from app.store.roles import granting

log = logging.getLogger("longhaul.store")

MIGRATIONS = Path(__file__).resolve().parent.parent.parent / "migrations"
PAUSE_SECONDS = 0.2
LOCK_SECONDS = 2
"""How long a migration waits for the lock of a table, and how long it pauses before it tries again.

Behind a migration that waits, every other statement on that table waits, too.
"""
_NO_RIGHT = InsufficientPrivilegeError.sqlstate
_LOCK = 0x10_9A_11  # an advisory lock, so that migrations run one at a time; any unused number


class SchemaTooOld(Exception):
    """The database is of a version that nothing upgrades. The message is one line, for operators."""


class NotTheOwner(Exception):
    """The role of DATABASE_URL may not change the schema. The message is one line, for operators."""


def head() -> str:
    """The newest revision."""
    return max(_revisions())


def _revisions() -> list[str]:
    """By the names of the files: workers and maintenance do without Alembic, 0.2 s of CPU."""
    return [file.name.partition("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*.py")]


def _config(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.runtime.migration import MigrationContext

    connection.execute(text("SET LOCAL statement_timeout = 0"))  # to change a large table takes hours
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found < min(_revisions()):
        raise SchemaTooOld(
            f"it has revision {found}, of a version before 0.3.0, which nothing upgrades. Give this version an empty "
            "database (DATABASE_URL) or, without one, an empty data folder (LONGHAUL_HOME), and keep the old one for "
            "the version that made it"
        )
    command.upgrade(_config(connection), "head")
    keys.make_missing(connection)
    granting.grant(connection)


async def migrate(db: Database) -> None:
    """Runs the missing migrations in one transaction, and grants the roles their rights (roles/rights.py); concurrent
    callers wait for each other.

    Other transactions that hold the tables delay it. They are not delayed themselves by more than LOCK_SECONDS at a
    time. A statement may take as long as it needs. Raises SchemaTooOld, NotTheOwner, and StoreUnavailable: StoreBusy if
    the tables were held for too long.
    """
    patient = db.sibling(1, driver_seconds=None)
    try:
        await _migrate(patient)
    finally:
        await patient.close()


async def _migrate(db: Database) -> None:
    patience = Patience()
    while True:
        try:
            async with db.begin() as connection:
                return await connection.run_sync(_upgrade)
        except StoreMismatch as error:
            cause = error.__cause__
            if isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", None) == _NO_RIGHT:
                raise NotTheOwner("its role does not own the schema: give `migrate` the owner's DATABASE_URL") from None
            raise
        except StoreBusy as error:
            is_locked = isinstance(error, StoreLocked)
            why = "another transaction, such as a backup, holds a table that it needs" if is_locked else error
            log.info("the migration is tried again: %s", why)
            await asyncio.sleep(LOCK_SECONDS)
            await patience.wait(error)


async def revision(db: Database) -> str | None:
    """The schema's revision, or None before the first migration. Raises StoreUnavailable."""
    async with db.begin() as connection:
        if (await connection.execute(text("SELECT to_regclass('alembic_version')"))).scalar() is None:
            return None
        found: str | None = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar()
        return found


async def _supports(db: Database, found: str | None) -> bool:
    """Whether this code works with a schema at `found`: its own revision, or a later one that took nothing from it."""
    if found is None or found <= head():
        return found == head()
    async with db.begin() as connection:
        oldest: str = (await connection.execute(text("SELECT revision FROM oldest_revision"))).scalar_one()
    return oldest <= head()


async def is_supported(db: Database) -> bool:
    """Whether this code works with the schema. Raises StoreUnavailable."""
    return await _supports(db, await revision(db))


async def wait_for_schema(db: Database, tell: Callable[[str], None] | None = None) -> None:
    """Returns once Postgres answers and this code works with the schema. Logs, and tells, what it waits for."""
    wanted, logged = head(), ""
    while True:
        try:
            found = await revision(db)
            if await _supports(db, found):
                return
            is_later = found is not None and found > wanted
            help_text = "this version is too old for it" if is_later else "run `longhaul migrate`"
            at = "it has no schema" if found is None else f"its schema is at {found}, not at {wanted}"
            kind = reason = f"{at}; {help_text}"
        except StoreUnavailable as error:
            kind, reason = "away", str(error)
        if kind != logged:  # one line for each, however the texts of an outage differ
            log.warning("waiting for Postgres: %s", reason)
            logged = kind
            if tell is not None:
                tell(f"it waits for Postgres: {reason}")
        await asyncio.sleep(PAUSE_SECONDS)
