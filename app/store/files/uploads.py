"""Uploads: files that come in parts, whose order their end says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from sqlalchemy import text

from app.store.database import Connection, Database
from app.store.files.parts import FIND_UPLOAD, INSERT_FILE, inserted, lock_upload
from app.store.files.rows import UPLOAD_COLUMNS, FileRow, NewFile, UploadRow

UPLOAD_SECONDS = 3600
"""How long an upload may take, from its creation on."""

_CREATE = text(
    f"""
    INSERT INTO uploads (id, project, filename, purpose, bytes, expires_after_seconds, expires_at)
    VALUES (:id, :project, :filename, :purpose, :bytes, :seconds, now() + interval '{UPLOAD_SECONDS} seconds')
    RETURNING {", ".join(column.name for column in UPLOAD_COLUMNS)}
    """
)
_PARTS = text(
    "SELECT id, bytes FROM file_parts WHERE upload_id = :upload AND project = :project AND state = 'finished'"
)
_SIZES = text("SELECT id, bytes FROM file_parts WHERE id = ANY(CAST(:ids AS text[]))")
_ORDER = text("SELECT id FROM file_parts WHERE file_id = :file AND project = :project ORDER BY start")
_PLACE = text(
    """
    UPDATE file_parts p SET file_id = :file, start = t.start, upload_id = NULL
    FROM unnest(CAST(:ids AS text[]), CAST(:starts AS bigint[])) AS t(id, start) WHERE p.id = t.id
    """
)
DROP_PARTS = "UPDATE file_parts SET state = 'dropped', bytes = 0, upload_id = NULL WHERE upload_id = ANY(:uploads)"
_DROP_PARTS = text(DROP_PARTS)
_END = text("UPDATE uploads SET status = :status, file_id = :file WHERE id = :upload AND project = :project")


async def create(db: Database, project: str, new: NewFile, size: int) -> UploadRow:
    """The id of `new` is that of the upload."""
    values = inserted(new, project, size)
    return UploadRow(**(await db.execute(_CREATE, values))[0]._mapping)


async def get(db: Database, project: str, upload_id: str) -> UploadRow | None:
    rows = await db.execute(FIND_UPLOAD, {"upload": upload_id, "project": project})
    return UploadRow(**rows[0]._mapping) if rows else None


async def finished_parts(db: Database, project: str, upload_id: str) -> Mapping[str, int]:
    """The bytes of each complete part, by its id."""
    return {row.id: row.bytes for row in await db.execute(_PARTS, {"upload": upload_id, "project": project})}


async def order_of(db: Database, project: str, file_id: str) -> list[str]:
    """The ids of the parts of a file, in their order."""
    return [row.id for row in await db.execute(_ORDER, {"file": file_id, "project": project})]


async def complete(
    db: Database,
    project: str,
    upload_id: str,
    part_ids: Sequence[str],
    new: NewFile,
    check: Callable[[UploadRow, Mapping[str, int]], None],
) -> FileRow | None:
    """Makes a file of these parts, in this order, and drops the others. Returns None if there is no such upload.

    `check` gets the upload and its parts, which nobody else changes until then, and may raise.
    """
    owned = {"upload": upload_id, "project": project}
    async with db.begin(waits=True) as connection:
        if (upload := await lock_upload(connection, project, upload_id, changes=True)) is None:
            return None
        parts = {row.id: row.bytes for row in await connection.execute(_PARTS, owned)}
        check(upload, parts)
        row = await create_of_parts(connection, project, new, {part_id: parts[part_id] for part_id in part_ids})
        await connection.execute(_DROP_PARTS, {"uploads": [upload_id]})
        await connection.execute(_END, {**owned, "status": "completed", "file": new.id})
    return row


async def create_of_parts(connection: Connection, project: str, new: NewFile, parts: Mapping[str, int]) -> FileRow:
    """Makes a file of complete parts with these bytes, in this order."""
    row = (await connection.execute(INSERT_FILE, inserted(new, project, sum(parts.values())))).one()
    starts = list(accumulate(parts.values(), initial=0))[:-1]
    await connection.execute(_PLACE, {"file": new.id, "ids": list(parts), "starts": starts})
    return FileRow.of(row)


async def part_sizes(connection: Connection, part_ids: Sequence[str]) -> Mapping[str, int]:
    """The bytes of each of these parts, in this order."""
    sizes = {row.id: row.bytes for row in await connection.execute(_SIZES, {"ids": list(part_ids)})}
    return {part_id: sizes[part_id] for part_id in part_ids}


async def cancel(db: Database, project: str, upload_id: str, check: Callable[[UploadRow], None]) -> UploadRow | None:
    """Ends the upload and drops its parts. Returns it as it was, or None if there is none. `check` may raise."""
    async with db.begin(waits=True) as connection:
        if (upload := await lock_upload(connection, project, upload_id, changes=True)) is None:
            return None
        check(upload)
        await connection.execute(_DROP_PARTS, {"uploads": [upload_id]})
        owned = {"upload": upload_id, "project": project}
        await connection.execute(_END, {**owned, "status": "cancelled", "file": None})
    return upload
