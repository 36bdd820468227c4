"""Carries batches on: validates and expands them, numbers results, writes files, ends those that are cancelled or due.

Each step is one transaction, and looks at the batch's row under its lock: copies of maintenance may work on the same
batch, and one that dies in the middle leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing

from app.aio import end_tasks
from app.announcer import Announcer
from app.batches.expander import WAITS, Dispatch, Expander, room_of
from app.batches.followers import doorbell_of
from app.batches.results import CANCELLED
from app.batches.validator import Validator
from app.batches.writer import ResultWriter, ended_by
from app.heavy import PROJECT
from app.protocol.status import BatchStatus
from app.protocol.text import type_and_places
from app.queue.publisher import QueueUnavailable
from app.responses.create.acceptor import RequestAcceptor
from app.store.batches import changes, results, rows, unfinished
from app.store.batches.rows import BatchRow
from app.store.batches.unfinished import UnfinishedBatch
from app.store.database import Database
from app.store.files.content import FileGone
from app.store.operations import cancels
from app.streaming.pubsub import PubSub
from config.settings import Settings

log = logging.getLogger("longhaul.batches")

BATCHES_AT_ONCE = 4
"""Batches that one process carries on at a time, and so many again that were cancelled. Maintenance keeps so many
connections for them."""
PROJECT_BATCHES_AT_ONCE = 2
"""The same for one project: another's need not wait for its large files."""
WARNED_AT = 3
"""Failures in a row of which one is logged as a warning."""


class BatchProgress:
    """Carries every unfinished batch on, each in a task of its own: none waits for another's file."""

    def __init__(
        self,
        db: Database,
        pubsub: PubSub,
        announcer: Announcer,
        acceptor: RequestAcceptor,
        dispatch: Dispatch,
        settings: Settings,
    ) -> None:
        self._db = db
        self._pubsub = pubsub
        self._announcer = announcer
        self._validator = Validator(db, acceptor, settings)
        self._expander = Expander(db, acceptor, dispatch, settings)
        self._writer = ResultWriter(db)
        self._tasks: dict[UnfinishedBatch, asyncio.Task[None]] = {}
        """The batch, as it was when its task began -> the task."""
        self._turns: dict[str, int] = {}
        """Batch or project that waits -> the look in which it was begun the last time."""
        self._looks = 0
        self._others_wait = False
        """Whether more batches wait than have places: then each gives its place up after a turn."""
        self._failures: dict[str, int] = {}
        """How often in a row each batch failed."""
        self._steps = {
            BatchStatus.VALIDATING: self._validate,
            BatchStatus.IN_PROGRESS: self._run,
            BatchStatus.FINALIZING: self._finalize,
            BatchStatus.CANCELLING: self._cancel,
        }

    async def advance(self) -> None:
        """Begins what can be done now, and waits for none of it. Raises StoreUnavailable."""
        self._tasks = {batch: task for batch, task in self._tasks.items() if not task.done()}
        begun = [*self._validator.begun, *(batch.id for batch in self._tasks)]
        found = await unfinished.find_all(self._db, begun)
        known = {batch.id for batch in found}
        self._validator.forget_others(known)
        self._expander.forget_others(known)
        self._failures = {batch_id: count for batch_id, count in self._failures.items() if batch_id in known}
        waiting = [batch for batch in found if batch.has_more or room_of(batch.lines)]
        names = {name for batch in waiting for name in (batch.id, batch.project)}
        self._turns = {name: turn for name, turn in self._turns.items() if name in names}
        self._looks += 1
        chosen = next_batches(waiting, list(self._tasks), self._turns, self._validator.begun)
        for batch in chosen:
            self._turns |= dict.fromkeys((batch.id, batch.project), self._looks)
            self._tasks[batch] = asyncio.create_task(self._advance(batch), name=batch.id)
        self._others_wait = len(waiting) > len(self._tasks)

    async def close(self) -> None:
        """Breaks off what is under way: another process, or the next one, goes on there."""
        await end_tasks(*self._tasks.values())

    async def _advance(self, batch: UnfinishedBatch) -> None:
        """Carries it from status to status, as far as it gets; a cancel has a task of its own."""
        PROJECT.set(batch.project)
        try:
            row = await rows.find(self._db, None, batch.id)
            while row is not None and not row.status.final and _is_cancel(row) is _is_cancel(batch):
                done = row.status
                await self._steps[done](row)
                row = await rows.find(self._db, None, batch.id)
                if row is None or row.status is done:
                    break
            self._failures.pop(batch.id, None)
            if row is not None and row.status.final:
                log.info("%s: %s, %d of %d lines have answers", row.id, row.status.value, row.completed, row.total)
                await self._pubsub.tell_ends(batch.id)
                await self._pubsub.ring(doorbell_of(batch.id))
        except Exception as error:
            self._note_failure(batch, error)

    def _note_failure(self, batch: UnfinishedBatch, error: Exception) -> None:
        """Logs an outage at the third failure in a row, whatever else at the first one: the next look tries again."""
        failures = self._failures[batch.id] = self._failures.get(batch.id, 0) + 1
        if isinstance(error, (*WAITS, QueueUnavailable)):
            log.log(logging.WARNING if failures == WARNED_AT else logging.DEBUG, "%s waits: %s", batch.id, error)
        elif failures == 1:
            what = "its file is gone" if isinstance(error, FileGone) else type_and_places(error)
            log.error("%s goes wrong: %s", batch.id, what)

    async def _validate(self, batch: BatchRow) -> None:
        if not await self._is_over(batch):
            while not await self._validator.validate(batch) and not self._others_wait:
                pass

    async def _is_over(self, batch: BatchRow) -> bool:
        """Whether its window is over; then it ends."""
        if batch.seconds_left > 0:
            return False
        async with self._db.begin() as connection:
            await changes.move(connection, batch.id, BatchStatus.FINALIZING)
        return True

    async def _run(self, batch: BatchRow) -> None:
        if await self._is_over(batch):
            return
        row = await self._number(batch.id)
        while await self._expander.expand(batch.id):
            row = await self._number(batch.id)
            if self._others_wait:
                break
        while await self._writer.write(batch.id):
            pass
        if row is not None and row.numbered == row.total:
            async with self._db.begin() as connection:
                await changes.move(connection, batch.id, BatchStatus.FINALIZING)

    async def _finalize(self, batch: BatchRow) -> None:
        row = await self._end_lines(batch)
        if row is not None:
            is_cut = row.in_progress_at is None or row.completed + row.failed < row.total
            is_cut = is_cut and ended_by(row) is not None
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

    async def _cancel_lines(self, batch_id: str) -> None:
        """Cancels all lines that have not ended. What others hold has its turn at the next look."""
        async with aclosing(cancels.line_steps(self._db, batch_id)) as steps:
            async for ended in steps:
                await self._announcer.tell_all(ended)

    async def _number(self, batch_id: str) -> BatchRow | None:
        """Numbers the results that have none; returns the batch behind them."""
        numbered = results.NUMBERED_ROWS
        while numbered == results.NUMBERED_ROWS:
            async with self._db.begin() as connection:
                if await rows.lock(connection, batch_id) is None:
                    return None
                numbered = await results.number_results(connection, batch_id)
            if numbered:
                await self._pubsub.ring(doorbell_of(batch_id))
        return await rows.find(self._db, None, batch_id)


def next_batches(
    waiting: Sequence[UnfinishedBatch],
    running: Sequence[UnfinishedBatch],
    turns: Mapping[str, int],
    begun: Collection[str] = (),
) -> list[UnfinishedBatch]:
    """Returns which of the waiting ones, the oldest first, begin now.

    Projects take turns, and the batches of each: `turns` has the last one of either. A batch that waits for room in its
    project's limits has something to do at each look. One whose validation has `begun` comes before others of its
    project, so that few are checked in part. A batch is carried on by one task at a time. Cancels have tasks and room
    of their own, and wait for no expansion.
    """
    known = {(batch.id, _is_cancel(batch)) for batch in running}
    has = Counter((_is_cancel(batch), batch.project) for batch in running)
    room = {
        is_cancel: BATCHES_AT_ONCE - sum(_is_cancel(batch) is is_cancel for batch in running)
        for is_cancel in (True, False)
    }
    chosen = []

    def turn(batch: UnfinishedBatch) -> tuple[int, bool, int]:
        return turns.get(batch.project, 0), batch.id not in begun, turns.get(batch.id, 0)

    for batch in sorted(waiting, key=turn):
        is_cancel = _is_cancel(batch)
        of_project = is_cancel, batch.project
        if (batch.id, is_cancel) not in known and room[is_cancel] > 0 and has[of_project] < PROJECT_BATCHES_AT_ONCE:
            chosen.append(batch)
            has[of_project] += 1
            room[is_cancel] -= 1
    return chosen


def _is_cancel(batch: UnfinishedBatch | BatchRow) -> bool:
    return batch.status is BatchStatus.CANCELLING
