"""Writing parts: what one request brings of a file, block by block, each in a transaction of its own.

Nobody sees a part before it is finished and in a file. One whose writer died gets no block any more: maintenance drops
it (expiry.py). Its bytes are reserved before they come, and count from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Connection, Database
from app.store.files.rows import UPLOAD_COLUMNS, FileRow, NewFile, UploadRow
from app.store.tables import uploads
from app.store.tenants.limits import check_stored

BLOCK_BYTES = 1024 * 1024
FILE_BYTES = 500
"""What a file counts besides its content and its name: its row."""
RESERVED_STEP = 16 * BLOCK_BYTES
"""The most that is reserved at a time where nobody knows how much will come: at first a block, then twice as much."""

_OPEN = text(
    """
    INSERT INTO file_parts (id, project, upload_id, bytes) VALUES (:part, :project, :upload, :bytes)
    """
)
_GROW = text(
    "UPDATE file_parts SET bytes = :bytes WHERE id = :part AND project = :project AND state = 'open' RETURNING id"
)
_ADD_BLOCK = text(
    """
    WITH part AS (
        UPDATE file_parts SET touched_at = now() WHERE id = :part AND project = :project AND state = 'open'
        RETURNING id
    )
    INSERT INTO file_blocks (part_id, number, data) SELECT id, :number, CAST(:data AS bytea) FROM part RETURNING number
    """
)
_FINISH = text(
    """
    UPDATE file_parts SET state = 'finished', bytes = :bytes, touched_at = now()
    WHERE id = :part AND project = :project AND state = 'open' RETURNING created_at
    """
)
_PUT_INTO_FILE = text("UPDATE file_parts SET file_id = :file, start = 0 WHERE id = :part AND project = :project")
_DROP = text(
    """
    UPDATE file_parts SET state = 'dropped', bytes = 0, upload_id = NULL
    WHERE id = :part AND project = :project AND file_id IS NULL
    """
)
INSERT_FILE = text(
    """
    INSERT INTO files (id, project, filename, purpose, bytes, expires_at)
    VALUES (:id, :project, :filename, :purpose, :bytes, now() + make_interval(secs => :seconds))
    RETURNING id, filename, purpose, bytes, created_at, expires_at
    """
)
FIND_UPLOAD = select(*UPLOAD_COLUMNS, (uploads.c.expires_at <= func.now()).label("has_expired")).where(
    uploads.c.id == bindparam("upload"), uploads.c.project == bindparam("project")
)
_PARTS_OF_UPLOAD = text(
    """
    SELECT count(*) AS number, CAST(coalesce(sum(bytes), 0) AS bigint) AS bytes FROM file_parts
    WHERE upload_id = :upload
    """
)


class PartGone(Exception):
    """The part was dropped meanwhile: its project was erased, its upload has ended, or it got nothing for too long."""


def inserted(new: NewFile, project: str, size: int) -> dict[str, Any]:
    """The values for INSERT_FILE."""
    return {
        "id": new.id,
        "project": project,
        "filename": new.filename,
        "purpose": new.purpose,
        "bytes": size,
        "seconds": new.expires_after_seconds,
    }


async def lock_upload(connection: AsyncConnection, project: str, upload_id: str, *, changes: bool) -> UploadRow | None:
    """The upload, which nobody else changes until the transaction ends; None: there is none."""
    locking = FIND_UPLOAD.with_for_update(read=not changes)
    row = (await connection.execute(locking, {"upload": upload_id, "project": project})).one_or_none()
    return None if row is None else UploadRow(**row._mapping)


class PartWriter:
    """Writes one part. Every method raises StoreUnavailable; those that write raise PartGone and LimitReached."""

    def __init__(self, db: Database, project: str, part_id: str, *, is_limited: bool = False) -> None:
        self.id = part_id
        self.project = project
        self.size = 0
        """The bytes so far."""
        self._db = db
        self._is_limited = is_limited
        self._reserved = 0
        self._blocks = 0
        self._buffer = bytearray()

    async def open(
        self,
        announced: int | None,
        upload_id: str | None = None,
        check: Callable[[UploadRow, int, int], None] | None = None,
    ) -> bool:
        """Reserves `announced` bytes (None: nobody knows how many will come). Returns False if there is no such upload.

        `check` gets the upload, and how many parts with how many bytes it has, and may raise.
        """
        reserved = BLOCK_BYTES if announced is None else announced
        values = {"part": self.id, "project": self.project, "upload": upload_id, "bytes": reserved}
        async with self._db.begin(waits=self._is_limited) as connection:
            if self._is_limited:
                await check_stored(connection, self.project, FILE_BYTES + reserved)
            if upload_id is not None:
                upload = await lock_upload(connection, self.project, upload_id, changes=False)
                if upload is None:
                    return False
                if check is not None:
                    parts = (await connection.execute(_PARTS_OF_UPLOAD, {"upload": upload_id})).one()
                    check(upload, parts.number, parts.bytes)
            await connection.execute(_OPEN, values)
        self._reserved = reserved
        return True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Adds bytes at the end. Holds less than a block of them in memory."""
        self._buffer += data
        self.size += len(data)
        while len(self._buffer) >= BLOCK_BYTES:
            with memoryview(self._buffer) as view:
                block = bytes(view[:BLOCK_BYTES])
            del self._buffer[:BLOCK_BYTES]
            await self._add(block)

    async def finish(self) -> datetime:
        """Makes the part of an upload complete; returns when it was begun."""
        await self.flush()
        async with self._db.begin() as connection:
            return await self._finish(connection)

    async def finish_file(self, new: NewFile) -> FileRow:
        """Makes the part a file, which is there from now on."""
        await self.flush()
        async with self._db.begin() as connection:
            return await self.finish_file_within(connection, new)

    async def flush(self) -> None:
        """Writes all bytes so far; then there are no more to come."""
        if self._buffer:
            await self._add(bytes(self._buffer))
            self._buffer.clear()

    async def finish_within(self, connection: Connection) -> None:
        """Makes the part, all of which is written, complete with the transaction."""
        await self._finish(connection)

    async def finish_file_within(self, connection: Connection, new: NewFile) -> FileRow:
        """Makes the part, all of which is written, a file with the transaction."""
        await self._finish(connection)
        row = (await connection.execute(INSERT_FILE, inserted(new, self.project, self.size))).one()
        await connection.execute(_PUT_INTO_FILE, {"file": new.id, "part": self.id, "project": self.project})
        return FileRow.of(row)

    async def drop(self) -> None:
        """Gives up the part, unless it is in a file."""
        await self._db.execute(_DROP, {"part": self.id, "project": self.project})

    async def _add(self, block: bytes) -> None:
        stored = self._blocks * BLOCK_BYTES + len(block)
        if stored > self._reserved:
            await self._reserve(max(stored, self._reserved + min(self._reserved, RESERVED_STEP)))
        values = {"part": self.id, "project": self.project, "number": self._blocks, "data": block}
        if not await self._db.execute(_ADD_BLOCK, values, large=True):
            raise PartGone
        self._blocks += 1

    async def _reserve(self, size: int) -> None:
        values = {"part": self.id, "project": self.project, "bytes": size}
        async with self._db.begin(waits=self._is_limited) as connection:
            if self._is_limited:
                await check_stored(connection, self.project, size - self._reserved)
            if (await connection.execute(_GROW, values)).first() is None:
                raise PartGone
        self._reserved = size

    async def _finish(self, connection: AsyncConnection) -> datetime:
        values = {"part": self.id, "project": self.project, "bytes": self.size}
        if (row := (await connection.execute(_FINISH, values)).first()) is None:
            raise PartGone
        created_at: datetime = row.created_at
        return created_at
