"""The steps of a bulk cancel, and those that end the lines of a batch.

Most of what is cancelled by the thousands is queued, and ends in one statement (queued.py): STEP_ROWS of them in a
transaction. All others end as by a cancel of their own, few in a transaction, for which their workers' next chunks wait
(endings.py).

A bulk cancel that is about batches as well is accepted with them (`cancel_batches`): no line becomes a response after
that, and each batch ends what is in its file (app/batches/progress.py). Its steps end the lines that are responses.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.status import UNFINISHED, BatchStatus, Status, batch_sources_of
from app.sizes import grouped
from app.store.batches import changes as batch_changes
from app.store.database import Database
from app.store.operations import actions
from app.store.operations.actions import ActionRow, Progress, Step
from app.store.operations.filters import Place, ResponseFilter, Window, batch_test, lines_window, window
from app.store.responses import endings, queued
from app.store.rows import EndResult, Notice

STEP_ROWS = 1000
"""Responses that one step cancels: dispatches pass by them meanwhile, and claims wait, for about 0.03 s."""

_CANCELLABLE = ", ".join(f"'{each.value}'" for each in batch_sources_of(BatchStatus.CANCELLING))
_BATCHES = f"""
    SELECT b.id, b.status, b.total - b.expanded AS lines FROM batches b WHERE b.status IN ({_CANCELLABLE}) AND {{}}
"""


async def steps(db: Database, seen: ActionRow) -> AsyncGenerator[Step]:
    """Cancels what is left of an action, step after step, up to the end of this pass.

    Ends early if another process, or an operator, has changed the action. Raises StoreUnavailable; then nothing of a
    step, or all of it, was committed.
    """
    only = seen.bounded
    while True:
        batch = await _next(db, window(only, UNFINISHED, STEP_ROWS, seen.cursor, descending=False))
        async with endings.cancelling(db, batch.sizes) as (connection, cancel_others):
            if not await actions.lock(connection, seen):
                return
            ended = await _ended(connection, batch, cancel_others)
            passed_by = len(batch.queued) + len(batch.sizes) - len(ended)
            seen = await actions.note(connection, seen, Progress(batch.cursor, len(ended), passed_by))
        yield Step(seen, ended)
        if batch.cursor is None:
            return


@dataclass(frozen=True, slots=True)
class BatchCount:
    """The effect of a cancel on batches."""

    batches: int = 0
    """Batches that end as a whole: all, or if what runs goes on those of which nothing can."""
    lines_in_files: int = 0
    """Lines of these and others that never become responses then."""


async def count_batches(db: Database, only: ResponseFilter) -> BatchCount:
    async with db.autocommit() as connection:
        return _counted(await _batches(connection, only))


async def cancel_batches(connection: AsyncConnection, only: ResponseFilter) -> BatchCount:
    """Cancels the batches that match, or their lines that are no responses yet. No other becomes one after that: all
    that the batches have in line was inserted before then."""
    found = await _batches(connection, only, "ORDER BY b.id FOR NO KEY UPDATE")
    for batch_id, is_whole, _ in found:
        if is_whole:
            await batch_changes.move(connection, batch_id, BatchStatus.CANCELLING)
        else:
            await batch_changes.cancel_lines(connection, batch_id)
    return _counted(found)


async def _batches(
    connection: AsyncConnection, only: ResponseFilter, locking: str = ""
) -> Sequence[tuple[str, bool, int]]:
    """The id of each batch that matches, whether it ends as a whole, and how many of its lines are in its file."""
    if (test := batch_test(only)) is None:
        return ()
    rows = await connection.execute(text(f"{_BATCHES.format(test.text)} {locking}"), test.values)
    return [(row.id, test.is_whole or row.status == BatchStatus.VALIDATING.value, row.lines) for row in rows]


def _counted(found: Sequence[tuple[str, bool, int]]) -> BatchCount:
    return BatchCount(sum(is_whole for _, is_whole, _ in found), sum(lines for _, _, lines in found))


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
    rows = await db.execute(wanted.reading(f"{queued.ENDS_AT_ONCE} AS ends_at_once"), wanted.values)
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
