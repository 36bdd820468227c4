"""The row of a batch, and how it changes its status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.batches import BatchStatus, sources_of
from app.protocol.types import Json
from app.store.columns import to_json
from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import batches


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch whose file nobody has read yet."""

    id: str
    project: str
    key_id: str | None
    endpoint: str
    input_file: str
    completion_window: str
    window_seconds: float
    metadata: Json | None = None
    output_seconds: int | None = None
    """How long its files are kept; None: until somebody deletes them."""
    retry_of: str | None = None
    """The batch whose failed lines these are."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch, as Postgres has it; its counts are those of all results that are committed."""

    id: str
    project: str
    key_id: str | None
    endpoint: str
    input_file: str
    completion_window: str
    metadata: Json | None
    output_seconds: int | None
    retry_of: str | None
    status: BatchStatus
    model: str | None
    errors: Json | None
    total: int
    inserted: int
    """How many of its lines are responses: the first ones."""
    inserted_bytes: int
    """Where in the file the next line begins."""
    numbered: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    written: int
    """How many of its lines, the first ones, have their result in its files."""
    output_file: str | None
    error_file: str | None
    created_at: datetime
    due_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None


_INSERT = text(
    """
    INSERT INTO batches (id, project, key_id, endpoint, input_file, completion_window, metadata, output_seconds,
        retry_of, status, created_at, due_at)
    VALUES (:id, :project, :key_id, :endpoint, :input_file, :completion_window, CAST(:metadata AS json),
        :output_seconds, :retry_of, 'validating', now(), now() + make_interval(secs => :window_seconds))
    """
)

COUNTS = """
    count(*) FILTER (WHERE status IN ('completed', 'incomplete')) AS completed,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    coalesce(sum(input_tokens), 0)::bigint AS input_tokens, coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
    coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
    coalesce(sum(reasoning_tokens), 0)::bigint AS reasoning_tokens
""".replace(":", "\\:")
"""What results add up to."""
ADDED = ("completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
"""The columns of a batch that its results add up to."""

_FIND = text(
    f"""
    SELECT b.*, {", ".join(f"n.{name} AS new_{name}" for name in ADDED)}
    FROM batches b CROSS JOIN LATERAL (
        SELECT {COUNTS} FROM batch_results WHERE batch_id = b.id AND number IS NULL
    ) n
    WHERE b.id = :id AND (CAST(:project AS text) IS NULL OR b.project = :project)
    """
)
_LOCK = text("SELECT * FROM batches WHERE id = :id FOR NO KEY UPDATE")
_LOCK_IF_FREE = text("SELECT * FROM batches WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED")
_UNFINISHED = text(
    """
    SELECT id, status, due_at < now() AS is_due FROM batches
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') ORDER BY created_at
    """
)
_MOVE = {
    target: text(
        f"""
        UPDATE batches SET status = '{target.value}', {target.value}_at = now(),
            errors = coalesce(CAST(:errors AS json), errors)
        WHERE id = :id AND status IN ({", ".join(f"'{source.value}'" for source in sources_of(target))})
        """
    )
    for target in BatchStatus
    if target is not BatchStatus.VALIDATING
}
_VALIDATED = text(
    """
    UPDATE batches SET status = 'in_progress', in_progress_at = now(), total = :total, model = :model
    WHERE id = :id AND status = 'validating'
    """
)
_CLAIM = text(
    """
    UPDATE batches SET validating_until = now() + make_interval(secs => :seconds)
    WHERE id = :id AND status = 'validating' AND (:renews OR validating_until IS NULL OR validating_until < now())
    """
)


def _row(row: Row[Any]) -> BatchRow:
    fields = {name: row._mapping[name] for name in BatchRow.__slots__}
    fields["status"] = BatchStatus(fields["status"])
    return BatchRow(**fields)


def _counted_row(row: Row[Any]) -> BatchRow:
    """With what its results add up to that have no number yet."""
    mapping = row._mapping
    added = {name: mapping[name] + mapping[f"new_{name}"] for name in ADDED}
    fields = {name: mapping[name] for name in BatchRow.__slots__} | added
    fields["status"] = BatchStatus(fields["status"])
    return BatchRow(**fields)


async def create(connection: AsyncConnection, new: NewBatch) -> None:
    """Inserts a batch, which is `validating`. Its window begins now, by Postgres' clock."""
    values = {name: getattr(new, name) for name in NewBatch.__slots__}
    await connection.execute(_INSERT, {**values, "metadata": to_json(new.metadata)})


async def find(db: Database, project: str | None, batch_id: str) -> BatchRow | None:
    """The batch; None: the project has none with that id. With `project` None, of whatever project."""
    rows = await db.execute(_FIND, {"id": batch_id, "project": project})
    return _counted_row(rows[0]) if rows else None


async def find_page(db: Database, project: str, page: Page) -> tuple[list[BatchRow], bool] | None:
    """A page of the project's batches, and whether there are more; None: the cursor names none of them."""
    owned = (batches.c.project == project,)
    found = await read_page(db, select(batches.c.id), (batches.c.created_at, batches.c.id), page, _id, owned)
    if found is None:
        return None
    rows = [await find(db, project, batch_id) for batch_id in found[0]]
    return [row for row in rows if row is not None], found[1]


def _id(row: Row[Any]) -> str:
    return str(row.id)


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """A batch that maintenance works on."""

    id: str
    status: BatchStatus
    is_due: bool
    """Whether its window is over."""


async def unfinished(db: Database) -> Sequence[UnfinishedBatch]:
    """The batches whose status is not final, the oldest first."""
    return [UnfinishedBatch(row.id, BatchStatus(row.status), row.is_due) for row in await db.execute(_UNFINISHED)]


async def lock(connection: AsyncConnection, batch_id: str, *, skip_locked: bool = False) -> BatchRow | None:
    """The batch, which nobody else changes until the transaction ends; None: there is none, or it is locked."""
    row = (await connection.execute(_LOCK_IF_FREE if skip_locked else _LOCK, {"id": batch_id})).one_or_none()
    return None if row is None else _row(row)


async def move(connection: AsyncConnection, batch_id: str, target: BatchStatus, errors: Json | None = None) -> bool:
    """Changes the status of a batch; returns False if its status does not allow that."""
    result = await connection.execute(_MOVE[target], {"id": batch_id, "errors": to_json(errors)})
    return bool(result.rowcount)


async def claim(db: Database, batch_id: str, seconds: float, *, renews: bool = False) -> bool:
    """Makes this process the only one that validates the batch for so many seconds; returns whether it is.

    `renews`: it is the one that did so before. False is then the end of the validation: the batch is cancelled.
    """
    async with db.autocommit() as connection:
        result = await connection.execute(_CLAIM, {"id": batch_id, "seconds": seconds, "renews": renews})
    return bool(result.rowcount)


async def validated(connection: AsyncConnection, batch_id: str, total: int, model: str | None) -> bool:
    """Starts a batch whose lines are all good; returns False if it is not `validating` any more."""
    result = await connection.execute(_VALIDATED, {"id": batch_id, "total": total, "model": model})
    return bool(result.rowcount)
