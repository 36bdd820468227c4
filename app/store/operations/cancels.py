"""The steps of a bulk cancel, and those that end the lines of a batch.

Most of what is cancelled by the thousands waits in the queue. Its terminal event follows from its opening events, which
nobody changes while it waits: it is made before any row is locked, and written for STEP_ROWS at once. All others end as
by a cancel of their own, few in a transaction, for which their workers' next chunks wait (endings.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.aio import end_tasks
from app.heavy import off_loop
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.machine import ResponseStream
from app.protocol.status import TRANSITIONS, Status
from app.sizes import WEIGHT_BYTES, grouped
from app.store.database import Database
from app.store.operations import actions
from app.store.operations.actions import ActionRow, Progress, Step
from app.store.operations.filters import Place, Window, lines_window, window
from app.store.packing import unpack_events
from app.store.responses import endings, final_rows
from app.store.responses.final_rows import FinalRow
from app.store.rows import Ending, EndResult, Notice

STEP_ROWS = 1000
"""Responses that one step cancels: dispatches and claims pass by them meanwhile, for about 0.1 s."""

T = TypeVar("T")
_WindowAfter = Callable[[Place | None], Window]
"""The responses behind a place that have not ended."""

_UNFINISHED = tuple(status for status in Status if status in TRANSITIONS["cancel"].sources)
# A request with secrets loses them at its end: it ends by itself, and so does a long one, in which to look takes long.
_NEXT = """
    WITH seen AS MATERIALIZED ({window})
    SELECT s.id, s.inserted_at, s.position, s.matches, r.opening, r.is_followed, r.was_sent
    FROM seen s LEFT JOIN LATERAL (
        SELECT r.stream OR NOT r.background AS is_followed, r.sent_at IS NOT NULL AS was_sent,
            CASE WHEN r.status <> 'queued' OR r.request_bytes > {most} THEN NULL
            WHEN strpos(CAST(r.request AS text), '"secrets":{{"') > 0 THEN NULL
            ELSE (
                SELECT c.frames FROM chunks c WHERE c.response_id = s.id AND c.first = 0 AND c.last = 1
            ) END AS opening
        FROM responses r WHERE s.matches AND r.id = s.id LIMIT 1
    ) r ON true
    ORDER BY s.inserted_at, s.position
"""
# They are found by their keys alone and locked in the order of their ids, as in logs.py.
_LOCK_QUEUED = text(
    """
    SELECT id, now() AS locked_at FROM responses WHERE id = ANY(CAST(:ids AS text[])) AND status = 'queued'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    """
)


async def steps(db: Database, seen: ActionRow) -> AsyncGenerator[Step]:
    """Cancels what is left of an action, step after step, up to the end of this pass.

    Ends early if another process, or an operator, has changed the action. While a step is written, the next one is made
    ready: on two connections. Raises StoreUnavailable; then nothing of a step, or all of it, was committed.
    """
    only = seen.bounded

    def window_after(after: Place | None) -> Window:
        return window(only, _UNFINISHED, STEP_ROWS, after, descending=False)

    async def write(batch: _Batch) -> Step | None:
        nonlocal seen
        step = await _written(db, seen, batch)
        seen = seen if step is None else step.action
        return step

    async with aclosing(_pipelined(db, window_after, seen.cursor, write)) as written:
        async for step in written:
            yield step


async def line_steps(db: Database, batch_id: str) -> AsyncGenerator[Sequence[Notice]]:
    """Cancels the lines of a batch that have not ended, but for those that others hold: another pass finds them.

    Returns step after step what it has ended. Raises as `steps`.
    """

    async def write(batch: _Batch) -> Sequence[Notice]:
        async with endings.cancelling(db, batch.sizes) as (connection, cancel_others):
            return (await _ended(connection, batch, cancel_others))[0]

    async with aclosing(_pipelined(db, partial(lines_window, batch_id, STEP_ROWS), None, write)) as written:
        async for ended in written:
            yield ended


async def _pipelined(
    db: Database, window_after: _WindowAfter, after: Place | None, write: Callable[[_Batch], Awaitable[T | None]]
) -> AsyncGenerator[T]:
    """What `write` returns for one batch after the other, until it returns None. Meanwhile the next one is made
    ready."""
    batch: _Batch | None = await _ready(db, window_after(after))
    while batch is not None:
        following = asyncio.create_task(_next(db, window_after, batch))
        try:
            step = await write(batch)
            if step is None:
                return
            yield step
            batch = await following
        finally:
            await end_tasks(following)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The responses of a step."""

    closings: Mapping[str, _Closing]
    """Of those that wait, by their ids."""
    sizes: Mapping[str, int]
    """The bytes of each other one."""
    cursor: Place | None
    """None: they are the last of the pass."""


async def _next(db: Database, window_after: _WindowAfter, before: _Batch) -> _Batch | None:
    return None if before.cursor is None else await _ready(db, window_after(before.cursor))


async def _ready(db: Database, wanted: Window) -> _Batch:
    rows = await db.execute(text(_NEXT.format(window=wanted.text, most=WEIGHT_BYTES)), wanted.values)
    closings = await off_loop(partial(_closings, rows), sum(len(row.opening or b"") for row in rows))
    others = [row.id for row in rows if row.matches and row.id not in closings]
    sizes = await endings.sizes_of(db, others[: endings.MAX_CANCELLED]) if others else {}
    fitting = {each: sizes[each] for each in next(iter(grouped(sizes, endings.MAX_LOG_BYTES)), ())}
    beyond = next((each for each in others if each not in fitting), None)
    end = next((number for number, row in enumerate(rows) if row.id == beyond), len(rows))
    cursor = None if end == len(rows) < STEP_ROWS else Place(rows[end - 1].inserted_at, rows[end - 1].position)
    return _Batch({row.id: closings[row.id] for row in rows[:end] if row.id in closings}, fitting, cursor)


async def _written(db: Database, seen: ActionRow, batch: _Batch) -> Step | None:
    """None: the action is not any more as it was seen."""
    async with endings.cancelling(db, batch.sizes) as (connection, cancel_others):
        if not await actions.lock(connection, seen):
            return None
        ended, passed_by = await _ended(connection, batch, cancel_others)
        action = await actions.note(connection, seen, Progress(batch.cursor, len(ended), passed_by))
    return Step(action, ended)


async def _ended(
    connection: AsyncConnection, batch: _Batch, cancel_others: Callable[[], Awaitable[Sequence[EndResult]]]
) -> tuple[list[Notice], int]:
    """Ends those of a batch that nobody else holds; returns them, and how many it has passed by."""
    ended = await _end_waiting(connection, batch.closings)
    results = await cancel_others()
    passed_by = len(batch.closings) - len(ended) + len(batch.sizes) - len(results)
    return ended + [notice for result in results if (notice := result.notice) is not None], passed_by


@dataclass(frozen=True, slots=True)
class _Closing:
    """How a response that waits ends."""

    chunk: Chunk
    is_followed: bool
    was_sent: bool

    def row(self, at: datetime) -> FinalRow:
        return FinalRow(self.chunk.response_id, Ending(Status.CANCELLED, [], at), self.chunk)

    @property
    def notice(self) -> Notice:
        return Notice(Status.CANCELLED, self.chunk, self.is_followed, self.was_sent)


def _closings(rows: Sequence[Row[Any]]) -> dict[str, _Closing]:
    """How those that wait end, by their ids; without those whose log is not what it should be."""
    found = {}
    for row in rows:
        with suppress(Exception):
            if row.opening is not None:
                found[row.id] = _Closing(_closing_chunk(row.id, row.opening), row.is_followed, row.was_sent)
    return found


def _closing_chunk(response_id: str, opening: bytes) -> Chunk:
    """The last chunk of a response that waits, after its `opening` events."""
    *_, queued = frames.split(unpack_events(opening))
    (event,) = frames.decode(queued)
    stream = ResponseStream.waiting(event["response"], event["sequence_number"] + 1)
    first = stream.next_sequence
    encoded = frames.encode_all(stream.cancel())
    return Chunk(response_id, first, stream.next_sequence - 1, 0, (), encoded, final=True)


async def _end_waiting(connection: AsyncConnection, closings: Mapping[str, _Closing]) -> list[Notice]:
    """Ends those that still wait and that no other transaction holds."""
    if not closings:
        return []
    locked = (await connection.execute(_LOCK_QUEUED, {"ids": list(closings)})).all()
    if locked:
        await final_rows.write(connection, [closings[row.id].row(row.locked_at) for row in locked])
    return [closings[row.id].notice for row in locked]
