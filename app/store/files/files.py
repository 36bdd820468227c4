"""Files that are there: read, listed, deleted."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import bindparam, select, text

from app.store.database import Connection, Database
from app.store.files.rows import FILE_COLUMNS, IS_THERE, FileRow
from app.store.paging import Page, read_page
from app.store.tables import UNFINISHED_BATCHES, files

# The parts count no more, and maintenance deletes their blocks: 8 GB take longer than a request may.
DELETE = """
    WITH gone AS (
        DELETE FROM files WHERE id IN ({}) RETURNING id
    ), dropped AS (
        UPDATE file_parts p SET state = 'dropped', bytes = 0, file_id = NULL, start = NULL
        FROM gone g WHERE p.file_id = g.id
    )
    SELECT id FROM gone
"""
IS_READ = f"""
    EXISTS (SELECT FROM batches b WHERE b.input_file = files.id
        AND b.status IN ({UNFINISHED_BATCHES}))
"""
"""Whether an unfinished batch reads the file: until it has ended, the file stays."""
_LOCK = text("SELECT id FROM files WHERE id = :id AND project = :project FOR UPDATE")
_IS_READ = text(f"SELECT id FROM files WHERE id = :id AND {IS_READ}")
_DELETE = text(DELETE.format("SELECT CAST(:id AS text)"))
_KEEP = (
    select(*FILE_COLUMNS)
    .where(files.c.id == bindparam("id"), files.c.project == bindparam("project"), IS_THERE)
    .with_for_update(key_share=True, read=True)
)


async def get(db: Database, project: str, file_id: str) -> FileRow | None:
    wanted = select(*FILE_COLUMNS).where(files.c.id == file_id, files.c.project == project, IS_THERE)
    rows = await db.execute(wanted)
    return FileRow.of(rows[0]) if rows else None


PAGE_FILES = 500
"""A page ends before it has more, however many were asked for: 10,000 would hold up everybody's tokens."""


async def page_of(db: Database, project: str, page: Page, purpose: str | None) -> tuple[list[FileRow], bool] | None:
    """A page of up to PAGE_FILES of the project's files, and whether there are more; None: the cursor names none."""
    statement = select(*FILE_COLUMNS).where(IS_THERE)
    if purpose is not None:
        statement = statement.where(files.c.purpose == purpose)
    keys, page = (files.c.created_at, files.c.id), replace(page, limit=min(page.limit, PAGE_FILES))
    return await read_page(db, statement, keys, page, FileRow.of, (files.c.project == project,))


class FileInUse(Exception):
    """An unfinished batch reads the file."""


async def keep(connection: Connection, project: str, file_id: str) -> FileRow | None:
    """The file, which nobody deletes until the transaction ends; None: there is none."""
    row = (await connection.execute(_KEEP, {"id": file_id, "project": project})).one_or_none()
    return None if row is None else FileRow.of(row)


async def delete(db: Database, project: str, file_id: str) -> bool:
    """Returns False if there is no such file. Raises FileInUse."""
    async with db.begin(waits=True) as connection:
        if (await connection.execute(_LOCK, {"id": file_id, "project": project})).first() is None:
            return False
        # A statement of its own: one that waits for the lock does not see the batch that it has waited for.
        if (await connection.execute(_IS_READ, {"id": file_id})).first() is not None:
            raise FileInUse
        await delete_within(connection, file_id)
    return True


async def delete_within(connection: Connection, file_id: str) -> None:
    """Deletes a file that nobody reads."""
    await connection.execute(_DELETE, {"id": file_id})
