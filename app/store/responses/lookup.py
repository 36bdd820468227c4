"""Reading the rows of responses. Functions for the API are scoped by project.

docs/internals/writes.md has every statement that writes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sqlalchemy import column, text

from app.protocol.status import Status
from app.protocol.types import Json
from app.sizes import LARGE_BYTES
from app.store.database import Database, one
from app.store.rows import (
    IS_SMALL,
    ROW_BYTES,
    ROW_COLUMNS,
    SMALL_ROW,
    WHOLE_ROW,
    LargeRow,
    ResponseFlags,
    ResponseRow,
    parsed_row,
    response_row,
    row_or_large,
    select_list,
)

T = TypeVar("T")

Hold = Callable[[int], Awaitable[None]]
"""Waits for room for so many bytes: `Holding.wait` of a bound."""

# With `project` NULL the response may be of any project.
_SMALL = text(
    f"""
    SELECT {SMALL_ROW}, CASE WHEN NOT {IS_SMALL} THEN {ROW_BYTES} END AS large_bytes
    FROM responses r WHERE r.id = :id AND r.project = coalesce(CAST(:project AS text), r.project)
    """
).columns(*ROW_COLUMNS, column("large_bytes"))
_WHOLE = text(
    f"""
    SELECT {WHOLE_ROW} FROM responses r
    WHERE r.id = :id AND r.project = coalesce(CAST(:project AS text), r.project)
    """
)
_FLAG_COLUMNS = ", ".join("now() AS read_at" if name == "read_at" else name for name in ResponseFlags.__slots__)
_FLAGS = text(f"SELECT {_FLAG_COLUMNS} FROM responses WHERE id = :id AND project = :project")
_FLAGS_BY_KEY = text(f"SELECT {_FLAG_COLUMNS} FROM responses WHERE project = :project AND idempotency_key = :key")
# Of those that have ended or are gone. What is read of them together is small, too.
_ENDED = text(
    f"""
    SELECT r.asked, {select_list("CASE WHEN r.fits THEN {} END")} FROM (
        SELECT a.id AS asked, r.*, {IS_SMALL}
            AND sum(CASE WHEN {IS_SMALL} THEN {ROW_BYTES} ELSE 0 END) OVER (ORDER BY r.id) <= {LARGE_BYTES} AS fits
        FROM unnest(CAST(:ids AS text[])) AS a(id) LEFT JOIN responses r ON r.id = a.id
        WHERE r.id IS NULL OR r.finished_at IS NOT NULL
    ) r
    """
)
_STATUS = text("SELECT status, error FROM responses WHERE id = :id")


async def get_flags(db: Database, project: str, response_id: str) -> ResponseFlags | None:
    """The flags of the response. None: the project has none with that id."""
    return await one(ResponseFlags, db, _FLAGS, {"id": response_id, "project": project})


async def show(db: Database, project: str, response_id: str, make: Callable[[ResponseRow], T], hold: Hold) -> T | None:
    """What `make` makes of the response, or None if the project has none with that id. Raises what `make` raises.

    Before a large response is read, `hold` is awaited with its bytes. `make` runs in the thread that reads it, so
    that its objects are gone before the next one is read.
    """
    return await _one(db, response_id, project, make, hold)


async def get_by_key(db: Database, project: str, key: str) -> ResponseFlags | None:
    """The flags of the response that the project's request with this Idempotency-Key made, or None."""
    return await one(ResponseFlags, db, _FLAGS_BY_KEY, {"key": key, "project": project})


async def find(db: Database, response_id: str) -> ResponseRow | None:
    """The response, for workers and maintenance, which serve every project."""
    return await _one(db, response_id, None, lambda row: row)


async def find_status(db: Database, response_id: str) -> tuple[Status, Json | None] | None:
    """Status and error of the response, of whatever project; None: there is none with that id."""
    rows = await db.execute(_STATUS, {"id": response_id})
    return (Status(rows[0].status), rows[0].error) if rows else None


async def find_ended(db: Database, response_ids: Sequence[str]) -> list[ResponseRow | LargeRow | None]:
    """The rows of those that have ended; None: it has not. A LargeRow has to be read by itself, or is gone."""
    ended = {
        row.asked: LargeRow(row.asked) if row.request is None else response_row(row)
        for row in await db.execute(_ENDED, {"ids": list(response_ids)})
    }
    return [ended.get(response_id) for response_id in response_ids]


async def _one(
    db: Database,
    response_id: str,
    project: str | None,
    make: Callable[[ResponseRow], T],
    hold: Hold | None = None,
) -> T | None:
    values = {"id": response_id, "project": project}
    if not (rows := await db.execute(_SMALL, values)):
        return None
    if not isinstance(found := row_or_large(rows[0]), LargeRow):
        return make(found)
    if hold is not None:
        await hold(rows[0].large_bytes)
    async with db.large_read(rows[0].project) as threads:
        rows = await db.execute(_WHOLE, values, large=True)
        return await threads.run(lambda: make(parsed_row(rows[0]))) if rows else None
