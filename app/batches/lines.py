"""The lines of a batch in its file. A batch that retries another one has some lines of the other's file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator
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
    places = None if batch.retry_of is None else await rows.places(db, batch.id, done, done + most)
    place, wanted = _wanted(places, done, most)
    if not wanted:
        return
    last = max(wanted)

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


def _wanted(places: list[int] | None, done: int, most: int) -> tuple[int, Collection[int]]:
    """Returns the place in the file of the line before, and those of the next ones. `places`: of all these, if not all
    lines are the batch's."""
    if places is None:
        return done, range(done + 1, done + most + 1)
    return (places[0], frozenset(places[1:])) if done else (0, frozenset(places))
