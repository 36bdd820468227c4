"""From a batch's file to its responses: the check of the whole file, and then step by step its lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing

from app.batches.jsonl import LineSplitter, RawLine
from app.batches.line import BatchLine, LineError, custom_id_of, line_error, read_line, refused_in
from app.batches.results import CANCELLED_ALONE
from app.batches.validation import Validation
from app.bounds import BoundReached
from app.protocol.errors import ApiError, LimitReached, ServerFault
from app.protocol.limits import LimitState, never_fits
from app.protocol.status import BatchStatus
from app.protocol.text import type_and_places
from app.protocol.types import Json
from app.responses.create.acceptor import RequestAcceptor
from app.store.batches import results, rows, unfinished
from app.store.batches.results import Skipped
from app.store.batches.rows import BatchRow
from app.store.batches.unfinished import Lines
from app.store.database import Connection, Database, StoreUnavailable
from app.store.files import content
from app.store.files.content import FileGone
from app.store.responses.inserts import insert_lines
from app.store.responses.new_rows import NewResponse
from app.store.rows import BatchPlace, Origin
from app.store.tenants import limits
from config.settings import Settings

log = logging.getLogger("longhaul.batches")

VALIDATION_SECONDS = 30.0
"""How long one process has a batch to itself; it renews that for each piece of the file."""
STEP_LINES = 256
STEP_BYTES = 4 * 1024 * 1024
"""Of the lines that one transaction inserts, unless the first one alone has more."""
LINES_AHEAD = 1024
AHEAD_OF_SLOT = 2
"""So many lines of a batch are responses that have not ended, and so many more for each slot of its model's workers:
what begins until the next look at the batch is there. The others wait in the file, and cost nothing there."""
SKIPPED_LINES = 5000
"""So many lines that never run are noted together."""
_BROKEN = "The request could not be checked."


Dispatch = Callable[[str], Awaitable[None]]
"""Sends what waits in a queue and has room."""


class Expander:
    """Validates batches, and makes responses of their lines. Copies of it in other processes may do the same."""

    def __init__(self, db: Database, acceptor: RequestAcceptor, dispatch: Dispatch, settings: Settings) -> None:
        self._db = db
        self._acceptor = acceptor
        self._dispatch = dispatch
        self._settings = settings
        self._steps: dict[str, int] = {}
        """How many lines the next step of a batch takes whose last one did not fit into its project's limits."""

    async def validate(self, batch_id: str) -> None:
        """Checks the batch's whole file; then the batch is `in_progress`, or `failed` and says why.

        Returns at once if another process does so, and in the middle if the batch is cancelled.
        """
        if not await rows.claim(self._db, batch_id, VALIDATION_SECONDS):
            return
        batch = await rows.find(self._db, None, batch_id)
        if batch is None:
            return
        try:
            validation = await self._validated(batch)
        except FileGone:
            await self._fail(batch_id, [LineError(None, "file_not_found", "The batch's file is gone.")])
            return
        if validation is None:
            return
        if problems := validation.problems():
            await self._fail(batch_id, problems)
        else:
            model = next(iter(validation.models)) if len(validation.models) == 1 else None
            async with self._db.begin() as connection:
                await rows.validated(connection, batch_id, validation.total, model, validation.queue)
        log.info("%s: %d lines, %d of them wrong", batch_id, validation.total, validation.bad)

    async def _fail(self, batch_id: str, problems: Sequence[LineError]) -> None:
        async with self._db.begin() as connection:
            await rows.move(connection, batch_id, BatchStatus.FAILED, _listed(problems))

    async def _validated(self, batch: BatchRow) -> Validation | None:
        """None: another process has the batch, or it is cancelled."""
        most = self._settings.max_body_bytes
        validation = Validation(batch.endpoint, self._settings.max_batch_lines, most)
        splitter = LineSplitter(most)
        own = await limits.states(self._db, batch.project)
        async with aclosing(content.read_from(self._db, batch.project, batch.input_file, 0)) as pieces:
            async for piece in pieces:
                if not await rows.claim(self._db, batch.id, VALIDATION_SECONDS, renews=True):
                    return None
                await self._check(batch, own, validation, splitter.feed(piece))
                if validation.is_over:
                    return validation
        await self._check(batch, own, validation, splitter.end())
        return validation

    async def _check(
        self, batch: BatchRow, own: Sequence[LimitState], validation: Validation, lines: Iterator[RawLine]
    ) -> None:
        """Adds the lines, until there are too many. `own` are the limits of the batch's project."""
        for raw in lines:
            if (line := validation.add(raw)) is None:
                await asyncio.sleep(0)  # As for a good one: others of this process go on.
            else:
                made = await self._made(batch, line, validation.total)
                if isinstance(made, NewResponse) and (error := _too_large(own, made)) is not None:
                    made = refused_in(line, error)
                if isinstance(made, ApiError):
                    validation.refuse(line_error(raw.number, made))
                else:
                    validation.queue = made.queue
            if validation.is_over:
                return

    async def expand(self, batch_id: str) -> bool:
        """Makes responses of the batch's next lines; returns False if there are none, or none has room at the moment.

        If operators have cancelled them, they never become responses. A line that was good, and is no more, because its
        model is gone, say, fails alone. Raises QueueUnavailable if the responses are made, and nobody was told.
        """
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.status is not BatchStatus.IN_PROGRESS or batch.seconds_left <= 0:
            return False
        if batch.lines_cancelled_at is not None:
            return await self.skip(batch_id, CANCELLED_ALONE)
        if not (room := room_of(await unfinished.lines_of(self._db, batch_id))):
            return False
        step = self._steps.pop(batch_id, STEP_LINES)
        lines = await self._next_lines(batch, min(step, room))
        made = [await self._response(batch, raw, place) for place, raw in enumerate(lines, batch.expanded + 1)]
        async with self._db.begin(waits=True) as connection:
            if not await _is_current(connection, batch):
                return True
            fitting, never = await insert_lines(connection, [each for each in made if isinstance(each, NewResponse)])
            done = _first(made, fitting)
            if never is not None:
                made[done] = _skipped(batch.expanded + done + 1, custom_id_of(lines[done]), LimitReached(never))
                done += 1
            if skipped := [each for each in made[:done] if isinstance(each, Skipped)]:
                await results.skip(connection, batch_id, skipped)
            if done:
                await rows.advance(connection, batch_id, batch.expanded + done, lines[done - 1].end)
        has_more = batch.expanded + done < batch.total
        if has_more and (done < len(lines) or step < STEP_LINES):
            self._steps[batch_id] = min(STEP_LINES, 2 * done or 1)
        for queue in {each.queue for each in made[:done] if isinstance(each, NewResponse)}:
            await self._dispatch(queue)
        return done > 0

    async def skip(self, batch_id: str, why: Json) -> bool:
        """Notes that the batch's next lines never become responses, and why; returns False if there are none."""
        self._steps.pop(batch_id, None)
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.status.final or batch.expanded == batch.total:
            return False
        lines = await self._next_lines(batch, SKIPPED_LINES)
        skipped = [
            Skipped(place, custom_id_of(raw), "cancelled", why) for place, raw in enumerate(lines, batch.expanded + 1)
        ]
        async with self._db.begin() as connection:
            if await _is_current(connection, batch):
                await results.skip(connection, batch_id, skipped)
                await rows.advance(connection, batch_id, batch.expanded + len(lines), lines[-1].end)
        return True

    async def _next_lines(self, batch: BatchRow, most: int) -> list[RawLine]:
        """At least one: the batch has lines that are not expanded."""
        splitter = LineSplitter(self._settings.max_body_bytes, offset=batch.expanded_bytes)
        found: list[RawLine] = []
        reading = content.read_from(self._db, batch.project, batch.input_file, batch.expanded_bytes)
        async with aclosing(reading) as pieces:
            async for piece in pieces:
                for line in splitter.feed(piece):
                    found.append(line)
                    if len(found) == most or line.end - batch.expanded_bytes >= STEP_BYTES:
                        return found
        return [*found, *splitter.end()]

    async def _response(self, batch: BatchRow, raw: RawLine, place: int) -> NewResponse | Skipped:
        """What becomes of a line that was good when the batch began."""
        try:
            line = read_line(raw, batch.endpoint, self._settings.max_body_bytes)
        except LineError as error:
            return Skipped(place, custom_id_of(raw), "failed", {"code": error.code, "message": error.message})
        made = await self._made(batch, line, place)
        return made if isinstance(made, NewResponse) else _skipped(place, line.custom_id, made)

    async def _made(self, batch: BatchRow, line: BatchLine, place: int) -> NewResponse | ApiError:
        """Raises StoreUnavailable, and BoundReached. Whatever else goes wrong is an error of this line alone."""
        await asyncio.sleep(0)  # Others of this process go on.
        where = BatchPlace(batch.id, place, line.custom_id, max(batch.seconds_left, 0.0))
        try:
            with ExitStack() as held:
                accepted = await self._acceptor.accept(
                    batch.project, line.request, held, origin=Origin(batch.key_id), place=where
                )
            return accepted.row
        except ApiError as refused:
            return refused_in(line, refused)
        except (StoreUnavailable, BoundReached):
            raise
        except Exception as error:
            log.error("%s: line %d cannot be checked: %s", batch.id, place, type_and_places(error))
            return ServerFault(_BROKEN)


def room_of(lines: Lines) -> int:
    """How many lines of a batch may become responses now: whole steps, or all that are left.

    Those of several models all may: the others must not wait for a model that has no worker. Cancelled ones end so.
    """
    if lines.slots is None:
        return lines.in_file
    room = LINES_AHEAD + AHEAD_OF_SLOT * lines.slots - lines.begun
    return min(room, lines.in_file) if room >= min(STEP_LINES, lines.in_file) else 0


def _too_large(own: Sequence[LimitState], new: NewResponse) -> ApiError | None:
    """Why a line never fits into the limits of its project; None: it fits once there is room."""
    if new.reservation is None:
        return None
    shortage = never_fits(own, new.project, new.model, new.reservation)
    return None if shortage is None else LimitReached(shortage)


def _skipped(place: int, custom_id: str, refused: ApiError) -> Skipped:
    error = refused.error
    return Skipped(place, custom_id, "failed", {"code": error.code, "message": error.message})


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
    names = ("status", "expanded", "lines_cancelled_at")
    return current is not None and all(getattr(current, name) == getattr(batch, name) for name in names)


def _listed(problems: Sequence[LineError]) -> Json:
    return {"object": "list", "data": [problem.body() for problem in problems]}
