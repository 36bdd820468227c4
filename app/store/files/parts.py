"""Writing parts: what one request brings of a file, block by block, each in a transaction of its own.

A request brings a file in one part; the writer of a batch makes a file of several. Nobody sees a part before it is
finished and in a file. One whose writer died gets no block any more: maintenance drops it (expiry.py). The bytes of a
part are reserved before they come, and count from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import text

from app.store.database import Connection, Database
from app.store.files.rows import FileRow, NewFile
from app.store.tenants.limits import check_stored

BLOCK_BYTES = 1024 * 1024
FILE_BYTES = 500
"""Bytes that a file's row counts, besides the file's content and name."""
RESERVED_STEP = 16 * BLOCK_BYTES
"""The most that is reserved at a time where nobody knows how much will come: at first a block, then twice as much."""

_OPEN = text("INSERT INTO file_parts (id, project, bytes) VALUES (:part, :project, :bytes)")
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
    WHERE id = :part AND project = :project AND state = 'open' RETURNING id
    """
)
_DROP = text(
    """
    UPDATE file_parts SET state = 'dropped', bytes = 0
    WHERE id = :part AND project = :project AND file_id IS NULL
    """
)
_MAKE_FILE = text(
    """
    WITH parts AS (
        SELECT p.id, p.bytes, sum(p.bytes) OVER (ORDER BY t.place) - p.bytes AS start
        FROM unnest(CAST(:parts AS text[])) WITH ORDINALITY AS t(id, place) JOIN file_parts p ON p.id = t.id
    ), made AS (
        INSERT INTO files (id, project, filename, purpose, bytes, expires_at)
        SELECT CAST(:id AS text), CAST(:project AS text), CAST(:filename AS text), CAST(:purpose AS text),
            coalesce(sum(bytes), 0), now() + make_interval(secs => :expires_after_seconds)
        FROM parts
        RETURNING id, filename, purpose, bytes, created_at, expires_at
    ), placed AS (
        UPDATE file_parts p SET file_id = m.id, start = t.start FROM parts t, made m WHERE p.id = t.id
    )
    SELECT * FROM made
    """
)


class PartGone(Exception):
    """The part was dropped meanwhile: its project was erased, or it got nothing for too long."""


async def create_of_parts(connection: Connection, project: str, new: NewFile, part_ids: Sequence[str]) -> FileRow:
    """Makes a file of complete parts, in this order."""
    values = {**asdict(new), "project": project, "parts": list(part_ids)}
    return FileRow(**(await connection.execute(_MAKE_FILE, values)).one()._mapping)


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

    async def open(self, announced: int | None) -> None:
        """Reserves `announced` bytes; None: nobody knows how many will come."""
        reserved = BLOCK_BYTES if announced is None else announced
        async with self._db.begin(waits=self._is_limited) as connection:
            if self._is_limited:
                await check_stored(connection, self.project, FILE_BYTES + reserved)
            await connection.execute(_OPEN, {"part": self.id, "project": self.project, "bytes": reserved})
        self._reserved = reserved

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Adds bytes at the end. Holds less than a block of them in memory."""
        self._buffer += data
        self.size += len(data)
        while len(self._buffer) >= BLOCK_BYTES:
            with memoryview(self._buffer) as view:
                block = bytes(view[:BLOCK_BYTES])
            del self._buffer[:BLOCK_BYTES]
            await self._add(block)

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
        values = {"part": self.id, "project": self.project, "bytes": self.size}
        if (await connection.execute(_FINISH, values)).first() is None:
            raise PartGone

    async def finish_file_within(self, connection: Connection, new: NewFile) -> FileRow:
        """Makes the part, all of which is written, a file with the transaction."""
        await self.finish_within(connection)
        return await create_of_parts(connection, self.project, new, [self.id])

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
