"""The batches that have not ended, and how far their lines have become responses: what maintenance goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, text

from app.protocol.status import BatchStatus
from app.store.database import Database
from app.store.tables import UNFINISHED_BATCHES


@dataclass(frozen=True, slots=True)
class LinesLeft:
    """How far the lines of a batch have become responses."""

    in_file: int = 0
    """Lines that are no responses yet."""
    begun: int = 0
    """Lines that are responses, and whose results have no number yet."""
    slots: int | None = 0
    """Slots of the living workers of the lines' model. None: the lines do not wait for workers, because the batch
    has several models, or was cancelled."""


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """A batch that maintenance works on."""

    id: str
    project: str
    status: BatchStatus
    lines: LinesLeft = LinesLeft()
    has_more: bool = True
    """Whether there is more to do now than to make responses of its lines."""


_LINES = """b.total - b.expanded AS in_file, b.expanded - b.numbered AS begun,
    CASE WHEN b.model IS NOT NULL AND b.lines_cancelled_at IS NULL
        THEN coalesce((SELECT s.slots FROM queue_slots s WHERE s.queue = (
            SELECT r.queue FROM responses r WHERE r.batch_id = b.id ORDER BY r.batch_line DESC LIMIT 1
        )), 0) END AS slots"""
_FIND_LINES = text(f"SELECT {_LINES} FROM batches b WHERE b.id = :id")
_UNFINISHED = text(
    f"""
    SELECT b.id, b.project, b.status, {_LINES}, b.status <> 'in_progress' OR b.due_at < now() OR b.numbered = b.total
        OR EXISTS (SELECT FROM batch_results r WHERE r.batch_id = b.id AND r.number IS NULL) AS has_more
    FROM batches b
    WHERE b.status IN ({UNFINISHED_BATCHES}) AND (
        b.status <> 'validating' OR coalesce(b.validating_until < now(), true)
        OR b.due_at < now() OR b.id = ANY(CAST(:begun AS text[])))
    ORDER BY b.created_at
    """
)


async def find_all(db: Database, begun: Sequence[str]) -> Sequence[UnfinishedBatch]:
    """The batches that no other process validates now, the oldest first. `begun`: those that this one validates."""
    found = await db.execute(_UNFINISHED, {"begun": list(begun)})
    return [UnfinishedBatch(r.id, r.project, BatchStatus(r.status), _lines(r), r.has_more) for r in found]


async def lines_of(db: Database, batch_id: str) -> LinesLeft:
    found = await db.execute(_FIND_LINES, {"id": batch_id})
    return _lines(found[0]) if found else LinesLeft()


def _lines(row: Row[Any]) -> LinesLeft:
    return LinesLeft(row.in_file, row.begun, row.slots)
