"""The steps of a bulk cancel, and those that end the lines of a batch.

Most of what is cancelled by the thousands is queued, and ends in one statement (queued.py): STEP_ROWS of them in a
transaction. All others end as by a cancel of their own, few in a transaction, for which their workers' next chunks wait
(endings.py).

A bulk cancel of whole batches ends their lines that are responses, and makes the batches `cancelling`: no other line
becomes a response then, and each batch ends what is in its file (app/batches/progress.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.status import TRANSITIONS, BatchStatus, Status, batch_sources_of
from app.sizes import grouped
from app.store.batches import rows as batches
from app.store.database import Database
from app.store.operations import actions
from app.store.operations.actions import ActionRow, Progress, Step
from app.store.operations.filters import Place, ResponseFilter, Window, batch_test, lines_window, window
from app.store.responses import endings, queued
from app.store.rows import EndResult, Notice

STEP_ROWS = 1000
"""Responses that one step cancels: dispatches pass by them meanwhile, and claims wait, for about 0.03 s."""

_UNFINISHED = tuple(status for status in Status if status in TRANSITIONS["cancel"].sources)
_NEXT = """
    WITH seen AS MATERIALIZED ({window})
    SELECT s.id, s.inserted_at, s.position, s.matches, r.ends_at_once
    FROM seen s LEFT JOIN LATERAL (
        SELECT {ends_at_once} AS ends_at_once FROM responses r WHERE s.matches AND r.id = s.id LIMIT 1
    ) r ON true
    ORDER BY s.inserted_at, s.position
"""
_CANCELLABLE = ", ".join(f"'{each.value}'" for each in batch_sources_of(BatchStatus.CANCELLING))
_OF_BATCHES = f"FROM batches b WHERE b.status IN ({_CANCELLABLE}) AND {{}}"


async def steps(db: Database, seen: ActionRow) -> AsyncGenerator[Step]:
    """Cancels what is left of an action, step after step, up to the end of this pass.

    Ends early if another process, or an operator, has changed the action. Raises StoreUnavailable; then nothing of a
    step, or all of it, was committed.
    """
    only = seen.bounded
    while True:
        batch = await _next(db, window(only, _UNFINISHED, STEP_ROWS, seen.cursor, descending=False))
        async with endings.cancelling(db, batch.sizes) as (connection, cancel_others):
            if not await actions.lock(connection, seen):
                return
            of_batches = await _cancel_batches(connection, only) if seen.cursor is None else 0
            ended = await _ended(connection, batch, cancel_others)
            passed_by = len(batch.queued) + len(batch.sizes) - len(ended)
            progress = Progress(batch.cursor, len(ended), passed_by, batches=of_batches)
            seen = await actions.note(connection, seen, progress)
        yield Step(seen, ended)
        if batch.cursor is None:
            return


async def _cancel_batches(connection: AsyncConnection, only: ResponseFilter) -> int:
    """Makes the batches `cancelling` that match, before the step locks any response; returns how many there were."""
    if (test := batch_test(only)) is None:
        return 0
    matching = text(f"SELECT b.id {_OF_BATCHES.format(test.text)} ORDER BY b.id FOR NO KEY UPDATE")
    found = (await connection.execute(matching, test.values)).scalars().all()
    return sum([await batches.move(connection, each, BatchStatus.CANCELLING) for each in found])


@dataclass(frozen=True, slots=True)
class BatchCount:
    """The batches that a cancel would end, and their lines that are no responses yet."""

    batches: int = 0
    lines_in_files: int = 0


async def count_batches(db: Database, only: ResponseFilter) -> BatchCount:
    if (test := batch_test(only)) is None:
        return BatchCount()
    count = text(f"SELECT count(*), coalesce(sum(b.total - b.expanded), 0)::bigint {_OF_BATCHES.format(test.text)}")
    (row,) = await db.execute(count, test.values)
    return BatchCount(*row)


async def line_steps(db: Database, batch_id: str) -> AsyncGenerator[Sequence[Notice]]:
    """Cancels the lines of a batch that have not ended, but for those that others hold: another pass finds them.

    Returns step after step what it has ended. Raises as `steps`.
    """
    after: Place | None = None
    while True:
        batch = await _next(db, lines_window(batch_id, STEP_ROWS, after))
        async with endings.cancelling(db, batch.sizes) as (connection, cancel_others):
            ended = await _ended(connection, batch, cancel_others)
        yield ended
        if (after := batch.cursor) is None:
            return


@dataclass(frozen=True, slots=True)
class _Batch:
    """The responses of a step."""

    queued: Sequence[str]
    """The ids of those that end at once."""
    sizes: Mapping[str, int]
    """The bytes of each other one."""
    cursor: Place | None
    """None: they are the last of the pass."""


async def _next(db: Database, wanted: Window) -> _Batch:
    statement = text(_NEXT.format(window=wanted.text, ends_at_once=queued.ENDS_AT_ONCE))
    rows = await db.execute(statement, wanted.values)
    others = [row.id for row in rows if row.matches and not row.ends_at_once]
    sizes = await endings.sizes_of(db, others[: endings.MAX_CANCELLED]) if others else {}
    fitting = {each: sizes[each] for each in next(iter(grouped(sizes, endings.MAX_LOG_BYTES)), ())}
    beyond = next((each for each in others if each not in fitting), None)
    end = next((number for number, row in enumerate(rows) if row.id == beyond), len(rows))
    cursor = None if end == len(rows) < STEP_ROWS else Place(rows[end - 1].inserted_at, rows[end - 1].position)
    return _Batch([row.id for row in rows[:end] if row.ends_at_once], fitting, cursor)


async def _ended(
    connection: AsyncConnection, batch: _Batch, cancel_others: Callable[[], Awaitable[Sequence[EndResult]]]
) -> list[Notice]:
    """Cancels those of a batch that nobody else holds; returns those that it has ended."""
    ended = await queued.end(connection, batch.queued, Status.CANCELLED)
    return ended + [notice for result in await cancel_others() if (notice := result.notice) is not None]
