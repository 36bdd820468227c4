"""What carries batches on: validates them, expands them, numbers results, writes files, ends what is cancelled or due.

Each step is one transaction, and looks at the batch's row under its lock: copies of maintenance may work on the same
batch, and one that dies in the middle leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from app.aio import end_tasks
from app.batches.expander import Expander, room_of
from app.batches.results import CANCELLED
from app.batches.writer import ResultWriter, ended_by
from app.bounds import BoundReached
from app.protocol.status import BatchStatus
from app.protocol.text import type_and_places
from app.queue.publisher import QueueUnavailable
from app.store.batches import results, rows, unfinished
from app.store.batches.rows import BatchRow
from app.store.batches.unfinished import UnfinishedBatch
from app.store.database import Database, StoreUnavailable
from app.store.files.content import FileGone

log = logging.getLogger("longhaul.batches")

CancelLines = Callable[[str], Awaitable[None]]
"""Cancels all lines of a batch that have not ended."""
TellEnd = Callable[[str], Awaitable[None]]
"""Tells those who wait for the end of a batch."""

AT_ONCE = 4
"""Batches that one process carries on at a time, and so many again that were cancelled."""
OF_PROJECT = 2
"""And of one project: another's need not wait for its large files."""


class BatchProgress:
    """Carries every unfinished batch on, each in a task of its own: none waits for another's file."""

    def __init__(
        self, db: Database, expander: Expander, writer: ResultWriter, cancel_lines: CancelLines, tell_end: TellEnd
    ) -> None:
        self._db = db
        self._expander = expander
        self._writer = writer
        self._cancel_lines = cancel_lines
        self._tell_end = tell_end
        self._tasks: dict[UnfinishedBatch, asyncio.Task[None]] = {}
        """By the batch as it was when its task began."""
        self._turns: dict[str, int] = {}
        """In which look each batch that waits was begun the last time."""
        self._looks = 0
        self._steps = {
            BatchStatus.VALIDATING: self._validate,
            BatchStatus.IN_PROGRESS: self._run,
            BatchStatus.FINALIZING: self._finalize,
            BatchStatus.CANCELLING: self._cancel,
        }

    async def advance(self) -> None:
        """Begins what can be done now, and waits for none of it. Raises StoreUnavailable."""
        waiting = [batch for batch in await unfinished.find_all(self._db) if batch.has_more or room_of(batch.lines)]
        self._tasks = {batch: task for batch, task in self._tasks.items() if not task.done()}
        self._turns = {batch.id: self._turns[batch.id] for batch in waiting if batch.id in self._turns}
        self._looks += 1
        for batch in next_batches(waiting, list(self._tasks), self._turns):
            self._turns[batch.id] = self._looks
            self._tasks[batch] = asyncio.create_task(self._advance(batch), name=batch.id)

    async def close(self) -> None:
        """Breaks off what is under way: another process, or the next one, goes on there."""
        await end_tasks(*self._tasks.values())

    async def _advance(self, batch: UnfinishedBatch) -> None:
        """Carries it from status to status, as far as it gets; a cancel has a task of its own."""
        try:
            row = await rows.find(self._db, None, batch.id)
            while row is not None and not row.status.final and _is_cancel(row) is _is_cancel(batch):
                done = row.status
                await self._steps[done](row)
                row = await rows.find(self._db, None, batch.id)
                if row is None or row.status is done:
                    return
            if row is not None and row.status.final:
                log.info("%s: %s, %d of %d lines have answers", row.id, row.status.value, row.completed, row.total)
                await self._tell_end(batch.id)
        except (StoreUnavailable, QueueUnavailable, BoundReached) as error:
            log.debug("%s waits: %s", batch.id, error)
        except FileGone:
            log.error("%s: its file is gone", batch.id)
        except Exception as error:
            log.error("%s goes wrong: %s", batch.id, type_and_places(error))

    async def _validate(self, batch: BatchRow) -> None:
        await self._expander.validate(batch.id)

    async def _run(self, batch: BatchRow) -> None:
        if batch.seconds_left <= 0:
            async with self._db.begin() as connection:
                await rows.move(connection, batch.id, BatchStatus.FINALIZING)
            return
        row = await self._number(batch.id)
        while await self._expander.expand(batch.id):
            row = await self._number(batch.id)
        while await self._writer.write(batch.id):
            pass
        if row is not None and row.numbered == row.total:
            async with self._db.begin() as connection:
                await rows.move(connection, batch.id, BatchStatus.FINALIZING)

    async def _finalize(self, batch: BatchRow) -> None:
        row = await self._end_lines(batch)
        if row is not None:
            is_cut = ended_by(row) is not None and row.completed + row.failed < row.total
            await self._writer.finish(batch.id, BatchStatus.EXPIRED if is_cut else BatchStatus.COMPLETED)

    async def _cancel(self, batch: BatchRow) -> None:
        if await self._end_lines(batch) is not None:
            await self._writer.finish(batch.id, BatchStatus.CANCELLED)

    async def _end_lines(self, batch: BatchRow) -> BatchRow | None:
        """Ends the lines that have not ended, and writes all results; returns the batch once that is done."""
        row: BatchRow | None = batch
        if batch.numbered < batch.total:
            await self._cancel_lines(batch.id)
            while await self._expander.skip(batch.id, ended_by(batch) or CANCELLED):
                pass
            row = await self._number(batch.id)
        while await self._writer.write(batch.id):
            pass
        return row if row is not None and row.numbered == row.total else None

    async def _number(self, batch_id: str) -> BatchRow | None:
        """Numbers the results that have none; returns the batch behind them."""
        goes_on = True
        while goes_on:
            async with self._db.begin() as connection:
                if await rows.lock(connection, batch_id) is None:
                    return None
                goes_on = await results.number_results(connection, batch_id)
        return await rows.find(self._db, None, batch_id)


def next_batches(
    waiting: Sequence[UnfinishedBatch], running: Sequence[UnfinishedBatch], turns: Mapping[str, int]
) -> list[UnfinishedBatch]:
    """Returns which of the waiting ones, the oldest first, begin now.

    They take turns, which `turns` has the last of: a batch that waits for room in its project's limits has something to
    do at each look. A batch is carried on by one task at a time. Cancels have tasks and room of their own, and wait for
    no expansion.
    """
    known = {(batch.id, _is_cancel(batch)) for batch in running}
    has = Counter((_is_cancel(batch), batch.project) for batch in running)
    room = {
        is_cancel: AT_ONCE - sum(_is_cancel(batch) is is_cancel for batch in running) for is_cancel in (True, False)
    }
    chosen = []
    for batch in sorted(waiting, key=lambda batch: turns.get(batch.id, 0)):
        is_cancel = _is_cancel(batch)
        of_project = is_cancel, batch.project
        if (batch.id, is_cancel) not in known and room[is_cancel] > 0 and has[of_project] < OF_PROJECT:
            chosen.append(batch)
            has[of_project] += 1
            room[is_cancel] -= 1
    return chosen


def _is_cancel(batch: UnfinishedBatch | BatchRow) -> bool:
    return batch.status is BatchStatus.CANCELLING
