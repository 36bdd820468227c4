"""A full disk: Postgres refuses to write with the SQLSTATE that it has for that, and continues once there is room.

A trigger raises it, so it works for every user. On a disk that is really full, Postgres raises the same for a table
that has to grow (`small_disk`). If the log of Postgres itself cannot grow, Postgres crashes.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from sqlalchemy import text

from app.store.database import Database
from tests.support.services import AS_OWNER, Services

_TABLES = ("responses", "chunks", "workers")
_INSTALL = (
    "CREATE TABLE fault_disk (full_until timestamptz NOT NULL)",
    "INSERT INTO fault_disk VALUES ('-infinity')",
    """
    CREATE FUNCTION fault_disk() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
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
        await connection.execute(text(AS_OWNER))
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


def can_mount(folder: Path) -> bool:
    """Whether this process may mount file systems: root in a container often may not."""
    probe = folder / "probe"
    probe.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", probe], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        _run("umount", probe)
    probe.rmdir()
    return mounted.returncode == 0


ROOM_BYTES = 8 * 1024 * 1024
"""What the small disk has room for beyond the tables."""


@asynccontextmanager
async def small_disk(services: Services, folder: Path) -> AsyncIterator[Path]:
    """Within the block the tables of Postgres, but not its log, lie in a small file system of their own. For root.

    Postgres restarts twice. The tables wait in `folder` while they move.
    """
    [tables] = (services.folder / "home").glob("postgres-[0-9]*/**/base")
    kept = folder / "base"
    size = sum(file.stat().st_size for file in tables.rglob("*")) + ROOM_BYTES

    def move_in() -> None:
        services.postgres.stop()
        _run("cp", "-a", tables, kept)
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", tables)
        _run("cp", "-a", f"{kept}/.", tables)
        shutil.rmtree(kept)
        services.postgres.start()

    def move_out() -> None:
        services.postgres.stop()
        _run("cp", "-a", tables, kept)
        _run("umount", tables)
        _run("cp", "-a", f"{kept}/.", tables)
        shutil.rmtree(kept)
        services.postgres.start()

    await asyncio.to_thread(move_in)
    try:
        yield tables
    finally:
        await asyncio.to_thread(move_out)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


@contextmanager
def filler(disk: Path) -> Iterator[None]:
    """Within the block a file takes all the room that the disk has."""
    file = disk / "filler"
    try:
        with file.open("wb", buffering=0) as sink, suppress(OSError):
            while True:
                sink.write(bytes(4096))
        yield
    finally:
        file.unlink()
