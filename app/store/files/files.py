"""Files that are there: read, listed, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import text

from app.store.database import Connection, Database, one
from app.store.files.rows import FileRow
from app.store.paging import Listing, Page
from app.store.tables import UNFINISHED_BATCHES

_IS_THERE = "(expires_at IS NULL OR expires_at > now())"
"""A file that has expired is not there, whenever maintenance deletes it."""
_OF_PROJECT = "SELECT id, filename, purpose, bytes, created_at, expires_at FROM files WHERE project = :project"
_GET = text(f"{_OF_PROJECT} AND id = :id AND {_IS_THERE}")
_KEEP = text(f"{_OF_PROJECT} AND id = :id AND {_IS_THERE} FOR KEY SHARE")
_LIST = Listing(_OF_PROJECT, f"{_IS_THERE} AND (CAST(:purpose AS text) IS NULL OR purpose = :purpose)")
_LOCK = text("SELECT id FROM files WHERE id = :id AND project = :project FOR UPDATE")
# The parts count no more, and maintenance deletes their blocks: 8 GB take longer than a request may.
_DELETE_UNREAD = text(
    f"""
    WITH gone AS (
        DELETE FROM files f WHERE f.id = ANY(CAST(:ids AS text[])) AND NOT EXISTS (
            SELECT FROM batches b WHERE b.input_file = f.id AND b.status IN ({UNFINISHED_BATCHES}))
        RETURNING f.id
    ), dropped AS (
        UPDATE file_parts p SET state = 'dropped', bytes = 0, file_id = NULL, start = NULL
        FROM gone g WHERE p.file_id = g.id
    )
    SELECT id FROM gone
    """
)


async def get(db: Database, project: str, file_id: str) -> FileRow | None:
    return await one(FileRow, db, _GET, {"id": file_id, "project": project})


PAGE_FILES = 500
"""A page ends before it has more, however many were asked for: 10,000 would hold up everybody's tokens."""


async def page_of(db: Database, project: str, page: Page, purpose: str | None) -> tuple[list[FileRow], bool]:
    """A page of up to PAGE_FILES of the project's files, and whether there are more."""
    page = replace(page, limit=min(page.limit, PAGE_FILES))
    return await _LIST.read(db, page, FileRow, {"project": project, "purpose": purpose})


class FileInUse(Exception):
    """An unfinished batch reads the file."""


async def keep(connection: Connection, project: str, file_id: str) -> FileRow | None:
    """The file, which nobody deletes until the transaction ends; None: there is none."""
    return await one(FileRow, connection, _KEEP, {"id": file_id, "project": project})


async def delete(db: Database, project: str, file_id: str) -> bool:
    """Returns False if there is no such file. Raises FileInUse."""
    async with db.begin(waits=True) as connection:
        if (await connection.execute(_LOCK, {"id": file_id, "project": project})).first() is None:
            return False
        if not await delete_unread(connection, [file_id]):
            raise FileInUse
    return True


async def delete_unread(connection: Connection, file_ids: Sequence[str]) -> int:
    """Deletes those of the files that no unfinished batch reads; returns how many.

    The caller's transaction has locked them: a statement that locks a file does not see a batch that was made of it
    meanwhile.
    """
    return len((await connection.execute(_DELETE_UNREAD, {"ids": list(file_ids)})).all())
