"""The check of a batch's whole file before any of it runs: the shape of each line, its `custom_id`, and its model.

What else a request needs (files, references, room in its project's limits) is checked when its line becomes a response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hashlib import blake2b

from app.batches.jsonl import RawLine, read_lines
from app.batches.line import BROKEN, BatchLine, BrokenLines, LineError, line_error, read_line, refused_in
from app.heavy import off_loop
from app.protocol.errors import ApiError, LimitReached
from app.protocol.status import BatchStatus
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.create.acceptor import LineCheck, RequestAcceptor
from app.store.batches import changes, rows
from app.store.batches.rows import BatchRow
from app.store.database import Connection, Database
from app.store.files.content import FileGone
from app.store.tenants import limits
from config.settings import Settings

log = logging.getLogger("longhaul.batches")

CLAIM_SECONDS = 30.0
"""How long one process has a batch to itself; it renews that for each piece of the file."""
TURN_LINES = 1000
"""Lines that are checked before another batch may have the place."""
MAX_ERRORS = 1000
"""Number of bad lines that are named; all are counted."""


@dataclass(slots=True)
class Validation:
    """The findings of a file so far. Add its lines in their order."""

    endpoint: str
    max_lines: int
    max_line_bytes: int
    omitted: Collection[str] = ()
    """Types of tools that are left out."""
    total: int = 0
    """Lines that are not blank."""
    bad: int = 0
    broken: BrokenLines = field(default_factory=BrokenLines)
    errors: list[LineError] = field(default_factory=list)
    """The first ones."""
    models: set[str] = field(default_factory=set)
    """The models that the requests name."""
    queue: str | None = None
    """Queue of the last good line. Operators see the lines in the file there until one of the batch is a response."""
    claim: datetime | None = None
    """The end of this process' claim of the batch, which also names it."""
    number: int = 0
    """Number of the last line."""
    end: int = 0
    """The offset in the file of the next line."""
    _seen: dict[bytes, int] = field(default_factory=dict)
    """The first line of each `custom_id`, by a digest: a million ids of 512 characters would be half a gigabyte."""

    def add(self, line: RawLine) -> BatchLine | None:
        """Returns the line's request, or None if something is wrong with it."""
        self.total += 1
        try:
            read = read_line(line, self.endpoint, self.max_line_bytes, self.omitted)
            self._check_new(read)
        except LineError as error:
            self.refuse(error)
            return None
        self.models.add(read.request.model)
        return read

    def refuse(self, error: LineError) -> None:
        """Notes a bad line."""
        self.bad += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    @property
    def is_over(self) -> bool:
        """Whether the file has more lines than a batch may have: the rest need not be read."""
        return self.total > self.max_lines

    def problems(self) -> list[LineError]:
        """The file's errors, once all of its lines were added; without any, the batch may run."""
        if self.is_over:
            message = f"The file has more than {self.max_lines} requests, the most of one batch."
            return [LineError(None, "too_many_requests", message)]
        if self.total == 0:
            return [LineError(None, "empty_file", "The file has no requests.")]
        if self.bad <= len(self.errors):
            return self.errors
        more = LineError(None, "too_many_errors", f"{self.bad} lines are wrong; the first {MAX_ERRORS} are named.")
        return [*self.errors, more]

    def _check_new(self, line: BatchLine) -> None:
        digest = blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        first = self._seen.setdefault(digest, line.number)
        if first != line.number:
            message = f"The custom_id '{shortened(line.custom_id)}' is that of line {first} already."
            raise LineError(line.number, "duplicate_custom_id", message, "custom_id")


class _Lost(Exception):
    """The batch is another process' now, or is cancelled."""


class Validator:
    """Validates batches, each in turns of TURN_LINES. Copies in other processes may do the same."""

    def __init__(self, db: Database, acceptor: RequestAcceptor, settings: Settings) -> None:
        self._db = db
        self._acceptor = acceptor
        self._settings = settings
        self._begun: dict[str, Validation] = {}

    @property
    def begun(self) -> Sequence[str]:
        """The batches whose files are checked in part."""
        return list(self._begun)

    def forget_others(self, unfinished: Collection[str]) -> None:
        """Keeps what it knows of these batches alone."""
        self._begun = {batch_id: begun for batch_id, begun in self._begun.items() if batch_id in unfinished}

    async def validate(self, batch: BatchRow) -> bool:
        """Checks the next lines of the batch's file; returns whether that was all: then the batch is `in_progress`, or
        `failed` and says why, or no more this process'."""
        ours = self._settings
        begun = self._begun.pop(batch.id, None) or Validation(
            batch.endpoint, ours.max_batch_lines, ours.max_body_bytes, ours.omit_tools
        )
        try:
            if not await self._check_next(batch, begun):
                self._begun[batch.id] = begun
                return False
            problems = begun.problems()
        except FileGone:
            problems = [LineError(None, "file_not_found", "The batch's file is gone.")]
        except _Lost:
            return True
        await self._end(batch, begun, problems)
        return True

    async def _end(self, batch: BatchRow, validation: Validation, problems: Sequence[LineError]) -> None:
        model = next(iter(validation.models)) if len(validation.models) == 1 else None
        async with self._db.begin() as connection:
            if await changes.claim(connection, batch.id, CLAIM_SECONDS, validation.claim) is None:
                return
            if not problems:
                problems = await _too_large(connection, batch.project, validation.total)
            if problems:
                await changes.move(connection, batch.id, BatchStatus.FAILED, _listed(problems))
            else:
                await changes.validated(connection, batch.id, validation.total, model, validation.queue)
        log.info("%s: %d lines, %d of them wrong", batch.id, validation.total, validation.bad)

    async def _check_next(self, batch: BatchRow, validation: Validation) -> bool:
        """Returns whether the rest of the file need not be read. Raises FileGone and _Lost."""
        await self._claim(batch, validation)
        accepts = await self._acceptor.line_check(batch.project)
        done, end, number = validation.total, validation.end, validation.number
        reading = read_lines(
            self._db, batch, self._settings.max_body_bytes, done=done, most=TURN_LINES, end=end, number=number
        )
        async with aclosing(reading) as pieces:
            async for lines in pieces:
                await self._claim(batch, validation)
                for raw in lines:
                    await self._check(batch, validation, raw, accepts)
                    validation.number, validation.end = raw.number, raw.end
                    if validation.is_over:
                        return True
        return validation.total < done + TURN_LINES

    async def _claim(self, batch: BatchRow, validation: Validation) -> None:
        async with self._db.autocommit() as connection:
            validation.claim = await changes.claim(connection, batch.id, CLAIM_SECONDS, validation.claim)
        if validation.claim is None:
            raise _Lost

    async def _check(self, batch: BatchRow, validation: Validation, raw: RawLine, accepts: LineCheck) -> None:
        """Checks a line. An unforeseen exception is the line's error, and is logged for the first such line."""
        try:
            await off_loop(partial(_add, validation, raw, accepts), len(raw.data or b""))
        except Exception as error:
            validation.broken.note(batch.id, raw.number, error)
            validation.refuse(LineError(raw.number, "server_error", BROKEN))
        await asyncio.sleep(0)  # Others of this process go on.


def _add(validation: Validation, raw: RawLine, accepts: LineCheck) -> None:
    if (line := validation.add(raw)) is None:
        return
    try:
        validation.queue = accepts(line.request)
    except ApiError as refused:
        validation.refuse(line_error(raw.number, refused_in(line, refused)))


async def _too_large(connection: Connection, project: str, lines: int) -> list[LineError]:
    """What the lines come to counts from now on, so a batch cannot grow beyond its project's limit while it runs."""
    try:
        await limits.check_stored(connection, project, rows.LINE_BYTES * lines)
    except LimitReached as refused:
        return [line_error(None, refused)]
    return []


def _listed(problems: Sequence[LineError]) -> Json:
    return {"object": "list", "data": [problem.body() for problem in problems]}
