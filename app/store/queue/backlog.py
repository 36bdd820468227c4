"""What has not ended, by model, project or key: whose it is, what becomes of it, and how old the oldest is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import text

from app.store.database import Database
from app.store.queue.fleet import IN_FILES, WAITING, follow_indexes
from app.store.tables import IS_SENT, IS_WAITING

By = Literal["model", "project", "key"]


@dataclass(frozen=True, slots=True)
class Part:
    """Unfinished responses of one owner and queue."""

    queue: str
    project: str
    key_id: str | None
    """None: they were asked for without a key, or it was not looked at."""
    state: str
    """`waiting` (in line, yielded ones included), `in_files` (lines of batches that are no responses yet), `sent`,
    `running` or `released`."""
    number: int
    oldest_seconds: float | None
    """Since the insert of the oldest that was never claimed, or of one that was; None: all of them have yielded."""


_AGE = "extract(epoch FROM now() - {})::float8"
_W = IS_WAITING.format("w.")
_WAITING_FLOWS = f"""(
        WITH RECURSIVE {WAITING} SELECT queue, project, CAST(NULL AS text) AS key_id, state, number, oldest FROM waiting
    )"""
# The index of what waits holds the keys, too, and the row of the oldest of each is looked up.
_WAITING_KEYS = f"""
    SELECT p.queue, p.project, p.key_id, 'waiting' AS state, p.number, (
            SELECT {_AGE.format("w.inserted_at")} FROM responses w WHERE {_W} AND w.status = 'queued'
                AND w.queue = p.queue AND w.project = p.project AND w.priority = p.priority
                AND coalesce(w.rank, w.position) >= p.first
                AND w.key_id IS NOT DISTINCT FROM p.key_id
            ORDER BY w.queue, w.project, w.priority, coalesce(w.rank, w.position), w.position LIMIT 1
        ) AS oldest
    FROM (
        SELECT w.queue, w.project, w.priority, w.key_id, count(*) AS number, min(coalesce(w.rank, w.position)) AS first
        FROM responses w WHERE {_W} GROUP BY w.queue, w.project, w.priority, w.key_id
    ) p
"""
_BEGUN = f"""
    SELECT b.queue, b.project, {{}} AS key_id, b.state, count(*) AS number,
        max({_AGE.format("b.inserted_at")}) AS oldest
    FROM (
        SELECT r.queue, r.project, r.key_id, r.inserted_at,
            CASE WHEN r.worker IS NULL THEN 'sent' ELSE 'running' END AS state
        FROM responses r WHERE {IS_SENT.format("r.")}
        UNION ALL
        SELECT r.queue, r.project, r.key_id, r.inserted_at, 'released'
        FROM responses r WHERE r.status = 'in_progress' AND r.worker IS NULL AND NOT r.yielded AND r.sent_at IS NULL
    ) b GROUP BY 1, 2, 3, 4
"""
_IN_FILES = f"SELECT queue, project, {{}} AS key_id, 'in_files' AS state, number, NULL FROM ({IN_FILES}) f"
_BY_FLOW = text(
    " UNION ALL ".join([_WAITING_FLOWS, *(each.format("CAST(NULL AS text)") for each in (_BEGUN, _IN_FILES))])
)
_BY_KEY = text(" UNION ALL ".join([_WAITING_KEYS, _BEGUN.format("b.key_id"), _IN_FILES.format("f.key_id")]))
_PROJECT_NAMES = text("SELECT id, name FROM projects WHERE id = ANY(:ids)")
_KEY_NAMES = text("SELECT id, name FROM api_keys WHERE id = ANY(:ids)")


async def read(db: Database, by: By) -> Sequence[Part]:
    """All that has not ended. Raises StoreUnavailable."""
    async with db.begin() as connection:
        await follow_indexes(connection)
        rows = await connection.execute(_BY_KEY if by == "key" else _BY_FLOW)
        return [Part(row.queue, row.project, row.key_id, row.state, row.number, row.oldest) for row in rows]


async def project_names(db: Database, ids: Sequence[str]) -> dict[str, str]:
    return {row.id: row.name for row in await db.execute(_PROJECT_NAMES, {"ids": list(ids)})}


async def key_names(db: Database, ids: Sequence[str]) -> dict[str, str]:
    return {row.id: row.name for row in await db.execute(_KEY_NAMES, {"ids": list(ids)})}
