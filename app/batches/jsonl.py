"""A batch's file of lines, split while it is read: no more than one line is ever in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from app.store.batches import rows
from app.store.batches.rows import BatchRow
from app.store.database import Database
from app.store.files import content

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_BLANK_LINES = re.compile(rb"[ \t\r\n]*\n")


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line of a file that is not blank."""

    number: int
    """The line's number, as editors count: from 1 on, blank lines included."""
    data: bytes | None
    """The line without its LF or CRLF; None: it is longer than lines may be."""
    end: int
    """The offset in the file of the byte behind the line and its end: whoever goes on there has read it."""


class LineSplitter:
    """Splits the pieces of a file into its lines.

    A line ends with LF or CRLF, the last one perhaps with nothing. A byte order mark at the beginning is left out.
    """

    def __init__(self, max_bytes: int, *, number: int = 0, offset: int = 0) -> None:
        """`max_bytes` bounds a line. To go on behind a line, give its `number`, and its `end` as the `offset` of the
        first piece."""
        self._max_bytes = max_bytes
        self._number = number
        self._offset = offset
        self._is_start = offset == 0
        self._begun = bytearray()
        self._is_too_long = False

    def feed(self, piece: bytes) -> Iterator[RawLine]:
        """Returns the lines that end in the next piece of the file."""
        start = self._skip(piece, 0)
        while (found := piece.find(b"\n", start)) >= 0:
            self._add(piece[start : found + 1])
            yield from self._ended()
            start = self._skip(piece, found + 1)
        self._add(piece[start:])

    def end(self) -> Iterator[RawLine]:
        """Returns the line that the file ends with, if no LF ends it."""
        if self._begun or self._is_too_long:
            yield from self._ended()

    def _skip(self, piece: bytes, start: int) -> int:
        """Skips the blank lines that begin here, all at once: a file may have millions. Returns where they end."""
        blank = None if self._begun or self._is_too_long else _BLANK_LINES.match(piece, start)
        if blank is None:
            return start
        self._number += piece.count(b"\n", start, blank.end())
        self._offset += blank.end() - start
        self._is_start = False
        return blank.end()

    def _add(self, part: bytes) -> None:
        self._offset += len(part)
        if self._is_too_long:
            return
        self._begun += part
        if self._is_start and len(self._begun) >= len(_BOM):
            self._is_start = False
            if self._begun.startswith(_BOM):
                del self._begun[: len(_BOM)]
        if len(self._begun) > self._max_bytes + len(b"\r\n"):
            self._is_too_long = True
            self._begun.clear()

    def _ended(self) -> Iterator[RawLine]:
        self._number += 1
        self._is_start = False
        data, is_too_long = bytes(self._begun).strip(_BLANK), self._is_too_long
        self._begun.clear()
        self._is_too_long = False
        if is_too_long or len(data) > self._max_bytes:
            yield RawLine(self._number, None, self._offset)
        elif data:
            yield RawLine(self._number, data, self._offset)


async def read_lines(
    db: Database, batch: BatchRow, max_bytes: int, *, done: int, most: int, end: int, number: int = 0
) -> AsyncGenerator[list[RawLine], None]:
    """Yields up to `most` lines behind the first `done`: for each piece of the file those that end in it, or none.

    `end` and `number` are those of the last line before. `max_bytes` bounds a line. A batch that retries another one
    has some lines of the other's file. Raises FileGone.
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
