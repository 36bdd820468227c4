"""The row of a batch, and how it changes its status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.status import BatchStatus
from app.protocol.types import Json
from app.store.database import Database, one
from app.store.paging import Listing, Page
from app.store.responses.lookup import Hold
from app.store.tables import UNFINISHED_BATCHES


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
    lines_cancelled_at: datetime | None
    """When operators asked that no further line becomes a response."""
    model: str | None
    errors: Json | None
    total: int
    expanded: int
    """How many of its lines, the first ones, are responses, or will never be."""
    expanded_bytes: int
    """The offset in the file of the next line."""
    numbered: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    written: int
    """How many of its lines, the first ones, have their result in its files."""
    output_parts: Sequence[str]
    """The parts of its output file, in order."""
    error_parts: Sequence[str]
    output_file: str | None
    error_file: str | None
    created_at: datetime
    due_at: datetime
    seconds_left: float
    """Seconds until the batch is due."""
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None


COUNTS = """
    count(*) FILTER (WHERE r.status IN ('completed', 'incomplete')) AS completed,
    count(*) FILTER (
        WHERE r.status = 'failed' OR r.status = 'cancelled' AND b.status = 'in_progress' AND b.due_at > now()
    ) AS failed,
    CAST(coalesce(sum(r.input_tokens), 0) AS bigint) AS input_tokens,
    CAST(coalesce(sum(r.cached_tokens), 0) AS bigint) AS cached_tokens,
    CAST(coalesce(sum(r.output_tokens), 0) AS bigint) AS output_tokens,
    CAST(coalesce(sum(r.reasoning_tokens), 0) AS bigint) AS reasoning_tokens
"""
"""What results `r` of a batch `b` add up to. What a cancel of the batch, or the end of its window, cut has not failed;
a line that was cancelled alone has."""
_ROW = """
    b.id, b.project, b.key_id, b.endpoint, b.input_file, b.completion_window, b.metadata, b.output_seconds, b.retry_of,
    b.status, b.lines_cancelled_at, b.model, b.errors, b.total, b.expanded, b.expanded_bytes, b.numbered,
    b.written, b.output_parts, b.error_parts, b.output_file, b.error_file, b.created_at, b.due_at,
    CAST(extract(epoch FROM b.due_at - now()) AS float8) AS seconds_left, b.in_progress_at, b.finalizing_at,
    b.completed_at, b.failed_at, b.expired_at, b.cancelling_at, b.cancelled_at
"""
# With what the results add up to that have no number yet.
_FIND = text(
    f"""
    SELECT {_ROW}, b.completed + n.completed AS completed, b.failed + n.failed AS failed,
        b.input_tokens + n.input_tokens AS input_tokens, b.cached_tokens + n.cached_tokens AS cached_tokens,
        b.output_tokens + n.output_tokens AS output_tokens, b.reasoning_tokens + n.reasoning_tokens AS reasoning_tokens
    FROM batches b CROSS JOIN LATERAL (
        SELECT {COUNTS} FROM batch_results r WHERE r.batch_id = b.id AND r.number IS NULL
    ) n
    WHERE b.id = ANY(CAST(:ids AS text[])) AND (CAST(:project AS text) IS NULL OR b.project = :project)
    """
)
_NUMBERED = f"""
    SELECT {_ROW}, b.completed, b.failed, b.input_tokens, b.cached_tokens, b.output_tokens, b.reasoning_tokens
    FROM batches b
"""
_LOCK = text(f"{_NUMBERED} WHERE b.id = :id FOR NO KEY UPDATE")
_FIND_BY_KEY = text(f"{_NUMBERED} WHERE b.project = :project AND b.idempotency_key = :key")
_PLACES = text(
    """
    SELECT (0 || lines)[CAST(:first AS integer) : CAST(:last AS integer)] AS places
    FROM batches WHERE id = :id AND lines IS NOT NULL
    """
)
_COUNT = text(f"SELECT count(*) FROM batches WHERE project = :project AND status IN ({UNFINISHED_BATCHES})")
_RETRY = text(
    f"SELECT id FROM batches WHERE project = :project AND retry_of = :id AND status IN ({UNFINISHED_BATCHES}) LIMIT 1"
)


def _row(status: str, **columns: Any) -> BatchRow:
    return BatchRow(status=BatchStatus(status), **columns)


async def find(db: Database, project: str | None, batch_id: str) -> BatchRow | None:
    """The batch; None: the project has none with that id. With `project` None, of whatever project."""
    return await one(_row, db, _FIND, {"ids": [batch_id], "project": project})


async def find_each(db: Database, batch_ids: Sequence[str]) -> list[BatchRow | None]:
    """The batch with each of these ids, of whatever project. One that is named many times is read once."""
    rows = await db.execute(_FIND, {"ids": list(set(batch_ids)), "project": None})
    found = {row.id: _row(**row._mapping) for row in rows}
    return [found.get(batch_id) for batch_id in batch_ids]


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of a list."""

    entries: Sequence[BatchRow]
    has_more: bool
    bytes: int


async def find_page(db: Database, project: str, page: Page, hold: Hold) -> BatchPage:
    """A page of the project's batches, which has LIST_PAGE_BYTES at most.

    `hold` is awaited with its bytes before it is read.
    """
    found, has_more = await _SIZES.read(db, page, _size, {"project": project})
    sizes = found[::-1] if page.is_backwards else found  # next to the cursor first
    fitting = page.fitting(size for _, size in sizes)
    size = sum(size for _, size in sizes[:fitting])
    ids = [batch_id for batch_id, _ in sizes[:fitting]]
    await hold(size)
    rows = {row.id: _row(**row._mapping) for row in await db.execute(_FIND, {"ids": ids, "project": project})}
    entries = [rows[batch_id] for batch_id in (ids[::-1] if page.is_backwards else ids) if batch_id in rows]
    return BatchPage(entries, has_more or fitting < len(sizes), size)


OBJECT_BYTES = 1000
"""A batch as clients see it, without its errors and metadata; it counts so much in `stored_bytes`, too."""
LINE_BYTES = 1000
"""What each of its lines counts there besides its response: its result's row, and its place in the batch's files."""
_SIZES = Listing(
    """
    SELECT id, created_at, coalesce(octet_length(CAST(errors AS text)), 0)
        + coalesce(octet_length(CAST(metadata AS text)), 0) AS bytes
    FROM batches WHERE project = :project
    """
)


def _size(id: str, bytes: int, **_: object) -> tuple[str, int]:
    return id, OBJECT_BYTES + bytes


async def find_by_key(connection: AsyncConnection, project: str, key: str) -> BatchRow | None:
    """The batch of the project's request with this Idempotency-Key."""
    return await one(_row, connection, _FIND_BY_KEY, {"project": project, "key": key})


async def count_unfinished(connection: AsyncConnection, project: str) -> int:
    return int((await connection.execute(_COUNT, {"project": project})).scalar_one())


async def unfinished_retry(connection: AsyncConnection, project: str, batch_id: str) -> str | None:
    """The id of a batch that retries this one and has not ended."""
    found = await connection.execute(_RETRY, {"project": project, "id": batch_id})
    return found.scalar_one_or_none()


async def places(db: Database, batch_id: str, done: int, most: int) -> Sequence[int]:
    """The places in its file of a retry's line number `done`, 0 if that is none, and of up to `most` behind it.

    Nothing: the batch has all lines of its file.
    """
    found = await db.execute(_PLACES, {"id": batch_id, "first": done + 1, "last": done + most + 1})
    return found[0].places if found else ()


async def lock(connection: AsyncConnection, batch_id: str) -> BatchRow | None:
    """The batch, which nobody else changes until the transaction ends; None: there is none."""
    return await one(_row, connection, _LOCK, {"id": batch_id})
