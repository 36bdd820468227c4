"""The lines of a batch in its file. A batch that retries another one has some lines of the other's file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from app.batches.jsonl import LineSplitter, RawLine
from app.store.batches import rows
from app.store.batches.rows import BatchRow
from app.store.database import Database
from app.store.files import content


async def read_lines(
    db: Database, batch: BatchRow, max_bytes: int, *, done: int, most: int, end: int, number: int = 0
) -> AsyncGenerator[list[RawLine], None]:
    """Yields up to `most` lines behind the first `done`: for each piece of the file those that end in it, or none.

    `end` and `number` are those of the last line before. `max_bytes` bounds a line. Raises FileGone.
    """
    places: Sequence[int] = range(done, done + most + 1)
    if batch.retry_of is not None:
        places = await rows.places(db, batch.id, done, most) or places
    place, wanted, last = places[0], frozenset(places[1:]), places[-1]
    if not wanted:
        return

    def taken(lines: Iterator[RawLine]) -> Iterator[RawLine]:
        nonlocal place
        for line in lines:
            place += 1
            if place in wanted:
                yield line
            if place == last:
                return

    splitter = LineSplitter(max_bytes, number=number, offset=end)
    async with aclosing(content.read_from(db, batch.project, batch.input_file, end)) as pieces:
        async for piece in pieces:
            yield list(taken(splitter.feed(piece)))
            if place == last:
                return
    yield list(taken(splitter.end()))
