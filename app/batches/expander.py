"""From a batch's file to its responses, step by step, as those before them end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial

from app.batches.jsonl import RawLine, read_lines
from app.batches.line import BROKEN, BrokenLines, LineError, custom_id_of, read_line, refused_in
from app.batches.results import CANCELLED_ALONE
from app.bounds import BoundReached
from app.heavy import off_loop
from app.protocol.errors import ApiError, ErrorObject, LimitReached, ServerFault, Unavailable
from app.protocol.status import BatchStatus
from app.protocol.text import type_and_places
from app.protocol.types import Json
from app.responses.create.acceptor import RequestAcceptor
from app.store.batches import changes, results, rows, unfinished
from app.store.batches.results import Skipped
from app.store.batches.rows import BatchRow
from app.store.batches.unfinished import LinesLeft
from app.store.database import Connection, Database, StoreBusy, StoreMismatch, StoreUnavailable
from app.store.responses.inserts import insert_lines
from app.store.responses.new_rows import NewResponse
from app.store.rows import BatchPlace, Origin
from config.settings import Settings

log = logging.getLogger("longhaul.batches")

STEP_LINES = 256
STEP_BYTES = 4 * 1024 * 1024
"""Bytes of the lines of one transaction, with their files and references. The line that exceeds them is the last of its
step."""
STEP_SECONDS = 2.0
"""How long a step takes lines, some of which read large files; then another batch may have the place."""
GIVEN_UP = 10
"""Number of failures in a row after which a line that Postgres does not take alone is an error."""
LINES_AHEAD = 1024
AHEAD_OF_SLOT = 2
"""So many lines of a batch are responses that have not ended, and so many more for each slot of its model's workers:
what begins until the next look at the batch is there. The others wait in the file, and cost nothing there."""
WAITS = (StoreUnavailable, BoundReached, Unavailable)
"""Errors after which a line waits: it may do better later."""
SKIPPED_LINES = 5000
"""Number of lines that never run and are noted in one transaction."""


Dispatch = Callable[[str], Awaitable[None]]
"""Sends what waits in a queue and has room."""


@dataclass(slots=True)
class _Pace:
    """How the next step of a batch goes after those before it."""

    lines: int
    """Fewer after lines that did not fit into the project's limits, or that failed."""
    failures: int = 0
    """Failures in a row."""
    broken: BrokenLines = field(default_factory=BrokenLines)


class Expander:
    """Makes responses of the lines of batches. Copies of it in other processes may do the same."""

    def __init__(self, db: Database, acceptor: RequestAcceptor, dispatch: Dispatch, settings: Settings) -> None:
        self._db = db
        self._acceptor = acceptor
        self._dispatch = dispatch
        self._settings = settings
        self._paces: dict[str, _Pace] = {}

    def forget_others(self, unfinished: Collection[str]) -> None:
        """Keeps what it knows of these batches alone."""
        self._paces = {batch_id: pace for batch_id, pace in self._paces.items() if batch_id in unfinished}

    async def expand(self, batch_id: str) -> bool:
        """Makes responses of the batch's next lines; returns False if there are none, or none has room at the moment.

        If operators have cancelled them, they never become responses. A line that is wrong fails alone. After an error
        the next step has half as many lines. Raises QueueUnavailable if the responses are made, and nobody was told.
        """
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.status is not BatchStatus.IN_PROGRESS or batch.seconds_left <= 0:
            return False
        if batch.lines_cancelled_at is not None:
            return await self.skip(batch_id, CANCELLED_ALONE)
        if not (room := room_of(await unfinished.lines_of(self._db, batch_id))):
            return False
        pace = self._paces.setdefault(batch_id, _Pace(STEP_LINES))
        most = min(pace.lines, room)
        try:
            lines = await self._next_lines(batch, most)
            done, queues = await self._step(batch, lines, pace)
        except Exception:
            pace.failures += 1
            pace.lines = max(1, most // 2)
            raise
        pace.failures = 0
        pace.lines = min(STEP_LINES, max(1, 2 * done))
        for queue in queues:
            await self._dispatch(queue)
        return done > 0

    async def _step(self, batch: BatchRow, lines: Sequence[RawLine], pace: _Pace) -> tuple[int, set[str]]:
        """Returns how many of the lines are responses now, or never will be, and whose queues they wait in."""
        with ExitStack() as held:
            try:
                made = await self._all_made(batch, lines, pace, held)
                return await self._insert(batch, lines, made)
            except Exception as error:
                if len(lines) > 1 or not _is_of_line(error, pace.failures):
                    raise
                log.error("%s: line %d is given up: %s", batch.id, batch.expanded + 1, type_and_places(error))
        never = await off_loop(partial(_skipped, batch.expanded + 1, lines[0], ServerFault(BROKEN)), _bytes_of(lines))
        return await self._insert(batch, lines, [never])

    async def _all_made(
        self, batch: BatchRow, lines: Sequence[RawLine], pace: _Pace, held: ExitStack
    ) -> list[NewResponse | Skipped]:
        """What becomes of the first lines, until they weigh enough for a step, or took long enough, or one has to wait.

        What the last one brought in is counted until the end of `held`. That of those before it is within STEP_BYTES: a
        line that waits for room holds none, so no two steps wait for each other.
        """
        made: list[NewResponse | Skipped] = []
        weight, until = 0, asyncio.get_running_loop().time() + STEP_SECONDS
        for place, raw in enumerate(lines, batch.expanded + 1):
            held.close()
            try:
                made.append(await self._made(batch, raw, place, pace, held))
            except WAITS:
                if not made:
                    raise
                break  # what is made is inserted, and the next step begins with this line
            weight += made[-1].size if isinstance(made[-1], NewResponse) else len(raw.data or b"")
            if weight >= STEP_BYTES or asyncio.get_running_loop().time() >= until:
                break
        return made

    async def _insert(
        self, batch: BatchRow, lines: Sequence[RawLine], made: list[NewResponse | Skipped]
    ) -> tuple[int, set[str]]:
        """See `_step`."""
        async with self._db.begin(waits=True) as connection:
            if not await _is_current(connection, batch):
                return len(made), set()
            fitting, never = await insert_lines(connection, [each for each in made if isinstance(each, NewResponse)])
            done = _first(made, fitting)
            if never is not None:
                made[done] = _skipped(batch.expanded + done + 1, lines[done], LimitReached(never))
                done += 1
            if skipped := [each for each in made[:done] if isinstance(each, Skipped)]:
                await results.skip(connection, batch.id, skipped)
            if done:
                await changes.advance(connection, batch.id, batch.expanded + done, lines[done - 1].end)
        return done, {each.queue for each in made[:done] if isinstance(each, NewResponse)}

    async def skip(self, batch_id: str, why: Json) -> bool:
        """Notes that the batch's next lines never become responses, and why; returns False if there are none."""
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.status.final or batch.expanded == batch.total:
            return False
        lines = await self._next_lines(batch, SKIPPED_LINES)

        def never() -> list[Skipped]:
            places = enumerate(lines, batch.expanded + 1)
            return [Skipped(place, custom_id_of(raw), "cancelled", why) for place, raw in places]

        skipped = await off_loop(never, _bytes_of(lines))
        async with self._db.begin() as connection:
            if await _is_current(connection, batch):
                await results.skip(connection, batch_id, skipped)
                await changes.advance(connection, batch_id, batch.expanded + len(lines), lines[-1].end)
        return True

    async def _next_lines(self, batch: BatchRow, most: int) -> list[RawLine]:
        """At least one: the batch has lines that are not expanded."""
        found, size = list[RawLine](), 0
        most_bytes, done, end = self._settings.max_body_bytes, batch.expanded, batch.expanded_bytes
        async with aclosing(read_lines(self._db, batch, most_bytes, done=done, most=most, end=end)) as pieces:
            async for lines in pieces:
                for line in lines:
                    found.append(line)
                    size += len(line.data or b"")
                    if size >= STEP_BYTES:
                        return found
        return found

    async def _made(
        self, batch: BatchRow, raw: RawLine, place: int, pace: _Pace, held: ExitStack
    ) -> NewResponse | Skipped:
        """What becomes of a line. Raises what is in WAITS; what nobody foresaw is the line's error."""
        await asyncio.sleep(0)  # Others of this process go on.
        size = len(raw.data or b"")
        try:
            most, omitted = self._settings.max_body_bytes, self._settings.omit_tools
            line = await off_loop(partial(read_line, raw, batch.endpoint, most, omitted), size)
            where = BatchPlace(batch.id, place, line.custom_id, max(batch.seconds_left, 0.0))
            try:
                accepted = await self._acceptor.accept(
                    batch.project, line.request, held, origin=Origin(batch.key_id), place=where
                )
                return accepted.row
            except Unavailable:
                raise
            except ApiError as refused:
                return _failed(place, line.custom_id, refused_in(line, refused).error)
        except LineError as error:
            name = await off_loop(partial(custom_id_of, raw), size)
            return _failed(place, name, error)
        except Exception as error:
            if isinstance(error, WAITS) and not isinstance(error, StoreMismatch):
                raise
            pace.broken.note(batch.id, place, error)
            return await off_loop(partial(_skipped, place, raw, ServerFault(BROKEN)), size)


def room_of(lines: LinesLeft) -> int:
    """How many lines of a batch may become responses now: whole steps, or all that are left.

    Those of several models all may: the others must not wait for a model that has no worker. Cancelled ones end so.
    """
    if lines.slots is None:
        return lines.in_file
    room = LINES_AHEAD + AHEAD_OF_SLOT * lines.slots - lines.begun
    return min(room, lines.in_file) if room >= min(STEP_LINES, lines.in_file) else 0


def _is_of_line(error: Exception, failures: int) -> bool:
    """Whether it is the only line of a step that cannot be inserted, and not Postgres that is away or busy."""
    if isinstance(error, StoreBusy | Unavailable):
        return failures >= GIVEN_UP
    return not isinstance(error, WAITS)


def _bytes_of(lines: Iterable[RawLine]) -> int:
    return sum(len(raw.data or b"") for raw in lines)


def _failed(place: int, custom_id: str, error: ErrorObject | LineError) -> Skipped:
    return Skipped(place, custom_id, "failed", {"code": error.code, "message": error.message})


def _skipped(place: int, raw: RawLine, refused: ApiError) -> Skipped:
    return _failed(place, custom_id_of(raw), refused.error)


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
