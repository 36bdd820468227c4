"""From a batch's file to its responses: the check of the whole file, and then step by step its lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing

from app.batches.jsonl import LineSplitter, RawLine
from app.batches.line import BatchLine, LineError, line_error, read_line, refused_in
from app.batches.validation import Validation
from app.protocol.errors import ApiError
from app.protocol.status import BatchStatus
from app.protocol.types import Json
from app.responses.create.acceptor import RequestAcceptor
from app.store.batches import results, rows
from app.store.batches.results import Skipped
from app.store.batches.rows import BatchRow
from app.store.database import Connection, Database
from app.store.files import content, files
from app.store.files.content import FileGone
from app.store.responses.inserts import insert_lines
from app.store.responses.new_rows import NewResponse
from app.store.rows import BatchPlace, Origin
from config.settings import Settings

log = logging.getLogger("longhaul.batches")

VALIDATION_SECONDS = 30.0
"""How long one process has a batch to itself; it renews that for each piece of the file."""
STEP_LINES = 256
STEP_BYTES = 4 * 1024 * 1024
"""Of the lines that one transaction inserts, unless the first one alone has more."""


class Expander:
    """Validates batches, and makes responses of their lines. Copies of it in other processes may do the same."""

    def __init__(self, db: Database, acceptor: RequestAcceptor, settings: Settings) -> None:
        self._db = db
        self._acceptor = acceptor
        self._settings = settings

    async def validate(self, batch_id: str) -> None:
        """Checks the batch's whole file; then the batch is `in_progress`, or `failed` and says why.

        Returns at once if another process does so, and in the middle if the batch is cancelled.
        """
        if not await rows.claim(self._db, batch_id, VALIDATION_SECONDS):
            return
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or (validation := await self._validated(batch)) is None:
            return
        problems, models = validation.problems(), validation.models
        async with self._db.begin() as connection:
            if problems:
                await rows.move(connection, batch_id, BatchStatus.FAILED, _listed(problems))
            else:
                model = next(iter(models)) if len(models) == 1 else None
                await rows.validated(connection, batch_id, validation.total, model)
        log.info("%s: %d lines, %d of them wrong", batch_id, validation.total, validation.bad)

    async def _validated(self, batch: BatchRow) -> Validation | None:
        """None: another process has the batch, or it is cancelled."""
        most = self._settings.max_body_bytes
        validation = Validation(batch.endpoint, self._settings.max_batch_lines, most)
        splitter = LineSplitter(most)
        async with aclosing(self._read(batch, 0)) as pieces:
            async for piece in pieces:
                if not await rows.claim(self._db, batch.id, VALIDATION_SECONDS, renews=True):
                    return None
                await self._check(batch, validation, splitter.feed(piece))
                if validation.is_over:
                    return validation
        await self._check(batch, validation, splitter.end())
        return validation

    async def _check(self, batch: BatchRow, validation: Validation, lines: Iterator[RawLine]) -> None:
        for raw in lines:
            if (line := validation.add(raw)) is not None:
                try:
                    await self._accepted(batch, line, validation.total)
                except ApiError as refused:
                    validation.refuse(line_error(raw.number, refused_in(line, refused)))
            await asyncio.sleep(0)  # Others of this process go on.

    async def expand(self, batch_id: str) -> bool:
        """Makes responses of the batch's next lines; returns False if there are none, or none that fits at the moment.

        A line that was good, and is no more, because its model is gone, say, fails alone.
        """
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.status is not BatchStatus.IN_PROGRESS or batch.expanded == batch.total:
            return False
        lines = await self._next_lines(batch)
        made = [await self._made(batch, raw, place) for place, raw in enumerate(lines, batch.expanded + 1)]
        async with self._db.begin(waits=True) as connection:
            if not await _is_current(connection, batch):
                return True
            fitting = await insert_lines(connection, [each for each in made if isinstance(each, NewResponse)])
            done = _first(made, fitting)
            if skipped := [each for each in made[:done] if isinstance(each, Skipped)]:
                await results.skip(connection, batch_id, skipped)
            if done:
                await rows.advance(connection, batch_id, batch.expanded + done, lines[done - 1].end)
        return done > 0

    async def skip(self, batch_id: str, why: Json) -> bool:
        """Notes that the batch's next lines never become responses, and why; returns False if there are none."""
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.expanded == batch.total:
            return False
        lines = await self._next_lines(batch)
        skipped = [
            Skipped(place, read_line(raw, batch.endpoint, self._settings.max_body_bytes).custom_id, "cancelled", why)
            for place, raw in enumerate(lines, batch.expanded + 1)
        ]
        async with self._db.begin() as connection:
            if await _is_current(connection, batch):
                await results.skip(connection, batch_id, skipped)
                await rows.advance(connection, batch_id, batch.expanded + len(lines), lines[-1].end)
        return True

    async def _next_lines(self, batch: BatchRow) -> list[RawLine]:
        """At least one: the batch has lines that are not expanded."""
        splitter = LineSplitter(self._settings.max_body_bytes, offset=batch.expanded_bytes)
        found: list[RawLine] = []
        async with aclosing(self._read(batch, batch.expanded_bytes)) as pieces:
            async for piece in pieces:
                for line in splitter.feed(piece):
                    found.append(line)
                    if len(found) == STEP_LINES or line.end - batch.expanded_bytes >= STEP_BYTES:
                        return found
        return [*found, *splitter.end()]

    async def _made(self, batch: BatchRow, raw: RawLine, place: int) -> NewResponse | Skipped:
        line = read_line(raw, batch.endpoint, self._settings.max_body_bytes)
        try:
            return await self._accepted(batch, line, place)
        except ApiError as refused:
            error = refused_in(line, refused).error
            return Skipped(place, line.custom_id, "failed", {"code": error.code, "message": error.message})

    async def _accepted(self, batch: BatchRow, line: BatchLine, place: int) -> NewResponse:
        """Raises ApiError and StoreUnavailable."""
        where = BatchPlace(batch.id, place, line.custom_id, max(batch.seconds_left, 0.0))
        with ExitStack() as held:
            accepted = await self._acceptor.accept(
                batch.project, line.request, held, origin=Origin(batch.key_id), place=where
            )
        return accepted.row

    async def _read(self, batch: BatchRow, first: int) -> AsyncGenerator[bytes, None]:
        """The bytes of the batch's file from `first` on."""
        file = await files.get(self._db, batch.project, batch.input_file)
        if file is None:
            raise FileGone
        async with aclosing(content.read(self._db, batch.project, file.id, first, file.bytes)) as pieces:
            async for piece in pieces:
                yield piece


def _first(made: Sequence[NewResponse | Skipped], fitting: int) -> int:
    """How many there are before the first response behind the `fitting` first ones."""
    for place, each in enumerate(made):
        if isinstance(each, NewResponse):
            if not fitting:
                return place
            fitting -= 1
    return len(made)


async def _is_current(connection: Connection, batch: BatchRow) -> bool:
    """Locks the batch, and returns whether it is as it was: otherwise another process was faster, or it ends."""
    current = await rows.lock(connection, batch.id)
    return current is not None and (current.status, current.expanded) == (batch.status, batch.expanded)


def _listed(problems: Sequence[LineError]) -> Json:
    return {"object": "list", "data": [problem.body() for problem in problems]}
