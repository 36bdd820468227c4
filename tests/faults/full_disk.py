"""A full disk: Postgres refuses to write with the SQLSTATE that it has for that, and continues once there is room.

A trigger raises it, so it works for every user. On a disk that is really full, Postgres raises the same for a table
that has to grow (test_store_scenarios fills one). If the log of Postgres itself cannot grow, Postgres crashes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from app.store.database import Database

_TABLES = ("responses", "chunks", "workers")
_INSTALL = (
    "CREATE TABLE fault_disk (full_until timestamptz NOT NULL)",
    "INSERT INTO fault_disk VALUES ('-infinity')",
    """
    CREATE FUNCTION fault_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF clock_timestamp() < (SELECT full_until FROM fault_disk) THEN
            RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full';
        END IF;
        RETURN NULL;
    END $$
    """,
    *(
        f"CREATE TRIGGER fault_disk BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION fault_disk()"
        for table in _TABLES
    ),
)


async def install(db: Database) -> None:
    """Adds the triggers to a new schema."""
    async with db.begin() as connection:
        for statement in _INSTALL:
            await connection.execute(text(statement))


async def fill(db: Database, seconds: float) -> None:
    """Fills the disk; it has room again after `seconds`."""
    statement = text("UPDATE fault_disk SET full_until = clock_timestamp() + make_interval(secs => :seconds)")
    async with db.begin() as connection:
        await connection.execute(statement, {"seconds": seconds})


@asynccontextmanager
async def filled(db: Database) -> AsyncIterator[None]:
    """The disk is full within the block."""
    await fill(db, 600)
    try:
        yield
    finally:
        await fill(db, 0)
