"""The files of a batch's results, in the order of its lines, written while they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from app.batches.results import CANCELLED, EXPIRED, Result, result
from app.heavy import off_loop
from app.ids import new_id
from app.protocol.status import BatchStatus
from app.protocol.types import Json
from app.store.batches import changes, rows
from app.store.batches.results import Order, ResultRow, read_results
from app.store.batches.rows import BatchRow
from app.store.database import Database
from app.store.files.parts import PartWriter, create_of_parts
from app.store.files.rows import NewFile

PART_BYTES = 1024 * 1024
"""Results of a batch that runs are written once there are so many."""


class ResultWriter:
    """Writes the results of batches into parts of files, and in the end the files."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def write(self, batch_id: str) -> bool:
        """Writes the next results, of which no line before them is missing; returns whether it wrote any."""
        batch = await rows.find(self._db, None, batch_id)
        if batch is None or batch.written == batch.expanded:
            return False
        found = await self._next(batch)
        if not found:
            return False
        output = await self._part(batch, [each.data for each in found if each.is_answer])
        errors = await self._part(batch, [each.data for each in found if not each.is_answer])
        parts = [part for part in (output, errors) if part is not None]
        async with self._db.begin() as connection:
            current = await rows.lock(connection, batch_id)
            if current is None or current.written != batch.written or ended_by(current) != ended_by(batch):
                # Another process was faster, or the lines' errors say now what has ended them. Maintenance drops the
                # parts.
                return True
            for part in parts:
                await part.finish_within(connection)
            made = _ids(output), _ids(errors)
            grouped = group_errors(batch.errors, found)
            await changes.note_written(connection, batch_id, batch.written + len(found), *made, grouped)
        return True

    async def finish(self, batch_id: str, status: BatchStatus) -> bool:
        """Makes the files, and ends the batch, if all results are written; returns whether it did."""
        async with self._db.begin() as connection:
            batch = await rows.lock(connection, batch_id)
            if batch is None or batch.written < batch.total or not await changes.move(connection, batch_id, status):
                return False
            made = []
            for kind, parts in (("output", batch.output_parts), ("error", batch.error_parts)):
                new = NewFile(new_id("file"), f"{batch_id}_{kind}.jsonl", "batch_output", batch.output_seconds)
                if parts:
                    await create_of_parts(connection, batch.project, new, parts)
                made.append(new.id if parts else None)
            await changes.set_files(connection, batch_id, *made)
        return True

    async def _next(self, batch: BatchRow) -> Sequence[Result]:
        """Returns none while a running batch has only a few."""
        found: list[Result] = []
        size, goes_on = 0, True
        while goes_on and size < PART_BYTES:
            page = await read_results(self._db, batch.id, batch.written + len(found), Order.LINE)
            next_ones = _without_gaps(page, batch.written + len(found) + 1)
            results = await off_loop(partial(self._results, batch, next_ones), PART_BYTES)
            found += results
            size += sum(len(each.data) for each in results)
            goes_on = bool(page) and len(next_ones) == len(page)
        is_whole = batch.written + len(found) == batch.total
        return found if is_whole or size >= PART_BYTES else []

    def _results(self, batch: BatchRow, page: Sequence[ResultRow]) -> list[Result]:
        return [result(row, batch.endpoint, ended_by(batch)) for row in page]

    async def _part(self, batch: BatchRow, lines: Sequence[bytes]) -> PartWriter | None:
        if not lines:
            return None
        part = PartWriter(self._db, batch.project, new_id("part"))
        await part.open(sum(map(len, lines)))
        await part.write(b"".join(lines))
        await part.flush()
        return part


def _ids(part: PartWriter | None) -> list[str]:
    return [] if part is None else [part.id]


def ended_by(batch: BatchRow) -> Json | None:
    """Returns what cut the batch's lines short, as their errors say it; None: nothing."""
    if batch.cancelling_at is not None:
        return CANCELLED
    return EXPIRED if batch.finalizing_at is not None and batch.finalizing_at >= batch.due_at else None


def _without_gaps(page: Sequence[ResultRow], first: int) -> Sequence[ResultRow]:
    """The rows up to the first line that is missing."""
    count = next((place for place, row in enumerate(page) if row.line != first + place), len(page))
    return page[:count]


def group_errors(errors: Json | None, more: Iterable[Result]) -> Json | None:
    """Returns a batch's `errors`, one for each code: how many lines have it, and the first of them."""
    known: list[Json] = [] if errors is None else errors["data"]
    first = {each["code"]: each["line"] for each in known}
    counts = Counter({each["code"]: each["count"] for each in known})
    for each in more:
        if each.error_code is not None:
            first.setdefault(each.error_code, each.line)
            counts[each.error_code] += 1
    if not counts:
        return None
    data = [
        {"code": code, "message": f"{_lines(count)} '{code}'.", "line": first[code], "param": None, "count": count}
        for code, count in counts.items()
    ]
    return {"object": "list", "data": data}


def _lines(count: int) -> str:
    return "1 request ended with" if count == 1 else f"{count} requests ended with"
