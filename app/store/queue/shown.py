"""What Flower shows of responses: those that were sent or claimed and have not ended, and what became of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.store.database import Database
from app.store.queue.fleet import follow_indexes
from app.store.tables import IS_SENT

MAX_IDS = 1_000
"""Rows that one statement finds by their ids."""


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A response without its contents."""

    id: str
    model: str
    project: str
    priority: int
    stream: bool
    status: str
    attempt: int
    """Of the last claim; 0: there was none."""
    runs: bool
    """Whether a worker owns it."""
    node: str | None
    """The worker that owns it, or that it was sent to, last."""
    sent_at: datetime | None
    started_at: datetime | None
    """Of its first attempt."""
    finished_at: datetime | None
    error: Mapping[str, Any] | None


_COLUMNS = """
    r.id, r.model, r.project, r.priority, r.stream, r.status, r.attempt, r.worker IS NOT NULL AS runs,
    r.sent_to AS node, r.sent_at, r.started_at, r.finished_at, r.error
"""
_UNFINISHED = text(
    f"""
    SELECT {_COLUMNS} FROM responses r WHERE {IS_SENT.format("r.")}
    UNION ALL
    SELECT {_COLUMNS} FROM responses r
    WHERE r.status = 'in_progress' AND r.worker IS NULL AND r.sent_at IS NULL
    LIMIT :most
    """
)
_BY_IDS = text(f"SELECT {_COLUMNS} FROM responses r WHERE r.id = ANY(CAST(:ids AS text[]))")


async def read_unfinished(db: Database, most: int) -> Sequence[ShownRow]:
    """Responses that were sent, that run, or that go on later; not those that wait for their first worker.

    Raises StoreUnavailable.
    """
    async with db.begin() as connection:
        await follow_indexes(connection)
        return [ShownRow(**row._mapping) for row in await connection.execute(_UNFINISHED, {"most": most})]


async def read(db: Database, ids: Sequence[str]) -> Sequence[ShownRow]:
    """Those of these responses that there are. Raises StoreUnavailable."""
    found: list[ShownRow] = []
    for start in range(0, len(ids), MAX_IDS):
        rows = await db.execute(_BY_IDS, {"ids": list(ids[start : start + MAX_IDS])})
        found += [ShownRow(**row._mapping) for row in rows]
    return found
