"""A full disk: a trigger raises the SQLSTATE that Postgres has for it, for every user, until there is room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from app.store.database import Database, retry_until_available

INSTALL = (
    "CREATE TABLE fault_disk (is_full boolean NOT NULL)",
    "INSERT INTO fault_disk VALUES (false)",
    """
    CREATE FUNCTION fault_disk() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF (SELECT is_full FROM fault_disk) THEN
            RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full';
        END IF;
        RETURN NULL;
    END $$
    """,
    *(
        f"CREATE TRIGGER fault_disk BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION fault_disk()"
        for table in ("responses", "chunks", "workers")
    ),
)


@asynccontextmanager
async def filled(db: Database) -> AsyncIterator[None]:
    """The disk is full within the block."""
    fill = text("UPDATE fault_disk SET is_full = :full")
    await db.execute(fill, {"full": True})
    try:
        yield
    finally:
        await retry_until_available(lambda: db.execute(fill, {"full": False}))
