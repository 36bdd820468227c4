"""The bytes of a file, block by block: a reader holds one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

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
_BLOCKS = text(
    """
    SELECT string_agg(substring(b.data FROM w.first FOR w.count), CAST('' AS bytea) ORDER BY w.place) AS data
    FROM unnest(
        CAST(:parts AS text[]), CAST(:numbers AS integer[]), CAST(:firsts AS integer[]), CAST(:counts AS integer[])
    ) WITH ORDINALITY AS w (part, number, first, count, place)
    JOIN file_blocks b ON b.part_id = w.part AND b.number = w.number
    """
)
STEP_BLOCKS = 1000
"""Blocks that are read at once, of 1 MiB together at most: a part may have a byte."""

_Range = tuple[str, int, int]
"""A part's id, the first byte of it that is read, and the one behind the last."""
_Block = tuple[str, int, int, int]
"""A part's id, the block's number in it, what is read of the block: the first byte, counted from 1, and how many."""


class FileGone(Exception):
    """The file was deleted while it was read."""


async def read(
    db: Database, project: str, file_id: str, first: int, stop: int, hold: Hold | None = None
) -> AsyncGenerator[bytes, None]:
    """Yields the bytes from `first` to before `stop`, which are in the file, up to 1 MiB at a time.

    Before each of these pieces is read, `hold` is awaited with its bytes. Raises FileGone.
    """
    place, ranges = first, list[_Range]()
    for part in await db.execute(_PARTS, {"file": file_id, "project": project, "first": first, "stop": stop}):
        end = min(stop, part.start + part.bytes)
        ranges.append((part.id, place - part.start, end - part.start))
        place = end
    if place < stop:
        raise FileGone
    async for piece in _read(db, project, ranges, hold):
        yield piece


async def read_from(db: Database, project: str, file_id: str, first: int) -> AsyncGenerator[bytes, None]:
    """`read` up to the end of the file. Raises FileGone, also if there is no such file."""
    file = await files.get(db, project, file_id)
    if file is None:
        raise FileGone
    async for piece in read(db, project, file_id, first, file.bytes):
        yield piece


async def _read(db: Database, project: str, ranges: Iterable[_Range], hold: Hold | None) -> AsyncGenerator[bytes, None]:
    for blocks in _steps(ranges):
        parts, numbers, firsts, counts = map(list, zip(*blocks, strict=True))
        size = sum(block[-1] for block in blocks)
        if hold is not None:
            await hold(size)
        values = {"parts": parts, "numbers": numbers, "firsts": firsts, "counts": counts}
        async with db.large_read(project):
            rows = await db.execute(_BLOCKS, values, large=True)
        piece: bytes = rows[0].data or b""
        del rows
        if len(piece) < size:
            raise FileGone
        yield piece


def _steps(ranges: Iterable[_Range]) -> Iterator[list[_Block]]:
    """Yields the blocks in groups that are read at once."""
    step, size = list[_Block](), 0
    for part_id, first, stop in ranges:
        while first < stop:
            number, offset = divmod(first, BLOCK_BYTES)
            count = min(BLOCK_BYTES - offset, stop - first)
            if step and (size + count > BLOCK_BYTES or len(step) == STEP_BLOCKS):
                yield step
                step, size = [], 0
            step.append((part_id, number, offset + 1, count))
            size += count
            first += count
    if step:
        yield step
