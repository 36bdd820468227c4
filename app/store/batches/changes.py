"""What makes and changes a batch, each in a transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.status import BatchStatus, batch_sources_of
from app.protocol.types import Json
from app.store.columns import to_json
from app.store.tables import EVENT_ID


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
    lines: Sequence[int] | None = None
    """Their places among the lines of the file that are not blank, from 1 on; None: all of them."""
    idempotency_key: str | None = None


_INSERT = text(
    """
    INSERT INTO batches (id, project, key_id, endpoint, input_file, completion_window, metadata, output_seconds,
        retry_of, lines, idempotency_key, status, created_at, due_at)
    VALUES (:id, :project, :key_id, :endpoint, :input_file, :completion_window, CAST(:metadata AS json),
        :output_seconds, :retry_of, CAST(:lines AS integer[]), :idempotency_key, 'validating', now(),
        now() + make_interval(secs => :window_seconds))
    """
)

_MOVE: dict[BatchStatus, TextClause] = {
    target: text(
        f"""
        UPDATE batches SET status = '{target.value}', {target.value}_at = now(),
            event_id = {EVENT_ID.format("") if target.final else "NULL"},
            errors = coalesce(CAST(:errors AS json), errors)
        WHERE id = :id AND status IN ({", ".join(f"'{source.value}'" for source in batch_sources_of(target))})
        """
    )
    for target in BatchStatus
    if target is not BatchStatus.VALIDATING
}
_CANCEL_LINES = text("UPDATE batches SET lines_cancelled_at = coalesce(lines_cancelled_at, now()) WHERE id = :id")
_SET_TOTAL = text("UPDATE batches SET total = :total, model = :model, queue = :queue WHERE id = :id")
_CLAIM = text(
    """
    UPDATE batches SET validating_until = clock_timestamp() + make_interval(secs => :seconds)
    WHERE id = :id AND status = 'validating' AND (validating_until = CAST(:claim AS timestamptz)
        OR CAST(:claim AS timestamptz) IS NULL AND (validating_until IS NULL OR validating_until < now()))
    RETURNING validating_until
    """
)
_ADVANCE = text("UPDATE batches SET expanded = :expanded, expanded_bytes = :bytes WHERE id = :id")
_WRITTEN = text(
    """
    UPDATE batches SET written = :written, output_parts = output_parts || CAST(:output AS text[]),
        error_parts = error_parts || CAST(:error AS text[]), errors = CAST(:errors AS json)
    WHERE id = :id
    """
)
_SET_FILES = text("UPDATE batches SET output_file = :output, error_file = :error WHERE id = :id")


async def create(connection: AsyncConnection, new: NewBatch) -> None:
    """Inserts a batch, which is `validating`. Its window begins now, by Postgres' clock."""
    await connection.execute(_INSERT, {**asdict(new), "metadata": to_json(new.metadata)})


async def move(connection: AsyncConnection, batch_id: str, target: BatchStatus, errors: Json | None = None) -> bool:
    """Changes the status of a batch; returns False if its status does not allow that."""
    result = await connection.execute(_MOVE[target], {"id": batch_id, "errors": to_json(errors)})
    return bool(result.rowcount)


async def cancel_lines(connection: AsyncConnection, batch_id: str) -> None:
    """None of its lines becomes a response any more; those that are go on. The caller has locked the batch."""
    await connection.execute(_CANCEL_LINES, {"id": batch_id})


async def claim(connection: AsyncConnection, batch_id: str, seconds: float, claim: datetime | None) -> datetime | None:
    """Makes the caller the only one that validates the batch for so many seconds; returns its claim: when that ends.

    `claim`: its last one, which this one replaces. None: another process has the batch, or has had it since, or the
    batch is cancelled.
    """
    result = await connection.execute(_CLAIM, {"id": batch_id, "seconds": seconds, "claim": claim})
    claimed: datetime | None = result.scalar_one_or_none()
    return claimed


async def validated(
    connection: AsyncConnection, batch_id: str, total: int, model: str | None, queue: str | None = None
) -> bool:
    """Starts a batch whose lines are all good; returns False if it is not `validating` any more."""
    if not await move(connection, batch_id, BatchStatus.IN_PROGRESS):
        return False
    await connection.execute(_SET_TOTAL, {"id": batch_id, "total": total, "model": model, "queue": queue})
    return True


async def advance(connection: AsyncConnection, batch_id: str, expanded: int, expanded_bytes: int) -> None:
    """Notes how many lines are expanded, and where the next one begins. The caller has locked the batch."""
    values = {"id": batch_id, "expanded": expanded, "bytes": expanded_bytes}
    await connection.execute(_ADVANCE, values)


async def note_written(
    connection: AsyncConnection,
    batch_id: str,
    written: int,
    output_parts: Sequence[str],
    error_parts: Sequence[str],
    errors: Json | None,
) -> None:
    """Notes that the results of the first `written` lines are in its files, of which these are the next parts.

    The caller has locked the batch.
    """
    values = {"id": batch_id, "written": written, "output": list(output_parts), "error": list(error_parts)}
    await connection.execute(_WRITTEN, {**values, "errors": to_json(errors)})


async def set_files(connection: AsyncConnection, batch_id: str, output: str | None, error: str | None) -> None:
    """Notes the ids of its files. The caller has locked the batch."""
    await connection.execute(_SET_FILES, {"id": batch_id, "output": output, "error": error})
