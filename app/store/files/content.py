"""The bytes of a file, block by block: a reader holds one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from sqlalchemy import text

from app.store.database import Database
from app.store.files import files
from app.store.files.parts import BLOCK_BYTES
from app.store.responses.lookup import Hold

_PARTS = text(
    """
    SELECT p.id, p.start, p.bytes FROM file_parts p JOIN files f ON f.id = p.file_id
    WHERE f.id = :file AND f.project = :project AND p.start < :stop AND p.start + p.bytes > :first ORDER BY p.start
    """
)
_BLOCK = text(
    "SELECT substring(data FROM :first FOR :count) AS data FROM file_blocks WHERE part_id = :part AND number = :number"
)


class FileGone(Exception):
    """The file was deleted while it was read."""


async def read(
    db: Database, project: str, file_id: str, first: int, stop: int, hold: Hold | None = None
) -> AsyncGenerator[bytes, None]:
    """Yields the bytes from `first` to before `stop`, which are in the file, up to 1 MiB at a time.

    Before each of these pieces is read, `hold` is awaited with its bytes. Raises FileGone.
    """
    place = first
    for part in await db.execute(_PARTS, {"file": file_id, "project": project, "first": first, "stop": stop}):
        end = min(stop, part.start + part.bytes)
        async for piece in _read_part(db, project, part.id, place - part.start, end - part.start, hold):
            yield piece
        place = end
    if place < stop:
        raise FileGone


async def read_from(db: Database, project: str, file_id: str, first: int) -> AsyncGenerator[bytes, None]:
    """`read` up to the end of the file. Raises FileGone, also if there is no such file."""
    file = await files.get(db, project, file_id)
    if file is None:
        raise FileGone
    async for piece in read(db, project, file_id, first, file.bytes):
        yield piece


async def read_parts(db: Database, project: str, sizes: Mapping[str, int]) -> AsyncGenerator[bytes, None]:
    """Yields all bytes of parts of the project, whose sizes these are, one after the other. Raises FileGone."""
    for part_id, size in sizes.items():
        async for piece in _read_part(db, project, part_id, 0, size, None):
            yield piece


async def _read_part(
    db: Database, project: str, part_id: str, first: int, stop: int, hold: Hold | None
) -> AsyncGenerator[bytes, None]:
    while first < stop:
        number, offset = divmod(first, BLOCK_BYTES)
        count = min(BLOCK_BYTES - offset, stop - first)
        values = {"part": part_id, "number": number, "first": offset + 1, "count": count}
        if hold is not None:
            await hold(count)
        async with db.large_read(project):
            rows = await db.execute(_BLOCK, values, large=True)
        if not rows or not rows[0].data:
            raise FileGone
        piece: bytes = rows[0].data
        del rows
        first += len(piece)
        yield piece
