"""Erasing what a project has: in batches, each committed, so that whoever comes next goes on where one was killed.

What is left is the project's row, its entries in the audit log, and its usage, which is the operators' ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.tables import UNFINISHED_BATCHES

_NEVER = datetime.max.replace(tzinfo=UTC)
SETTLE_SECONDS = 10.0
"""Pause before an erasure begins: a process without Redis takes 5 s to learn that the project's keys have ended."""

_DUE = text(
    """
    SELECT id, erase_at, archived_at IS NOT NULL AS is_archived FROM projects
    WHERE erase_at < now() - make_interval(secs => :seconds) ORDER BY erase_at
    """
)
# Lines of a batch go with it, whenever it made them.
_UNFINISHED = text(
    """
    (SELECT id FROM responses WHERE project = :project AND status IN ('queued', 'in_progress')
        AND inserted_at < :before LIMIT :limit)
    UNION
    (SELECT id FROM responses WHERE project = :project AND status IN ('queued', 'in_progress')
        AND batch_id = ANY(ARRAY(SELECT b.id FROM batches b WHERE b.project = :project
            AND b.created_at < :before)) LIMIT :limit)
    """
)
# Everybody who waits for several rows locks them in the order of their ids.
_RESPONSES = text(
    """
    DELETE FROM responses WHERE id = ANY(ARRAY(
        SELECT id FROM responses WHERE id = ANY(ARRAY(
            (SELECT id FROM responses WHERE project = :project
                AND status IN ('completed', 'failed', 'cancelled', 'incomplete')
                AND inserted_at < :before LIMIT :limit)
            UNION
            (SELECT id FROM responses WHERE project = :project
                AND status IN ('completed', 'failed', 'cancelled', 'incomplete')
                AND batch_id = ANY(ARRAY(SELECT b.id FROM batches b WHERE b.project = :project
                    AND b.created_at < :before)) LIMIT :limit)
        )) ORDER BY id FOR UPDATE
    )) RETURNING id
    """
)
_UNFINISHED_BATCHES = text(
    f"""
    SELECT id FROM batches WHERE project = :project AND status IN ({UNFINISHED_BATCHES}) AND created_at < :before
    ORDER BY id FOR NO KEY UPDATE
    """
)
# What the lines of a batch came to goes with it, once they have all ended, and so do the parts that would have been its
# files.
_BATCHES = text(
    """
    WITH gone AS (
        DELETE FROM batches WHERE id = ANY(ARRAY(
            SELECT id FROM batches WHERE id = ANY(ARRAY(
                SELECT id FROM batches WHERE project = :project AND created_at < :before LIMIT :limit
            )) ORDER BY id FOR UPDATE
        ))
        RETURNING id, output_parts || error_parts AS parts
    ), results AS (
        DELETE FROM batch_results r USING gone g WHERE r.batch_id = g.id
    ), dropped AS (
        UPDATE file_parts SET state = 'dropped', bytes = 0
        WHERE id = ANY(ARRAY(SELECT unnest(parts) FROM gone)) AND file_id IS NULL
    )
    SELECT id FROM gone
    """
)
_CONVERSATIONS = text(
    """
    DELETE FROM conversations WHERE id = ANY(ARRAY(
        SELECT id FROM conversations WHERE id = ANY(ARRAY(
            SELECT id FROM conversations WHERE project = :project AND inserted_at < :before LIMIT :limit
        )) ORDER BY id FOR UPDATE
    )) RETURNING id
    """
)
# What maintenance finds and deletes then: the files of a project are too many bytes for one statement.
_FILES = text(
    """
    WITH gone AS (
        DELETE FROM files WHERE id = ANY(ARRAY(
            SELECT id FROM files WHERE id = ANY(ARRAY(
                SELECT id FROM files WHERE project = :project AND created_at < :before LIMIT :limit
            )) ORDER BY id FOR UPDATE
        ))
        RETURNING id
    ), dropped AS (
        UPDATE file_parts p SET state = 'dropped', bytes = 0, file_id = NULL, start = NULL
        FROM gone g WHERE p.file_id = g.id
    )
    SELECT id FROM gone
    """
)
_OPEN_PARTS = text(
    """
    UPDATE file_parts SET state = 'dropped', bytes = 0
    WHERE project = :project AND state = 'open' AND created_at < :before RETURNING id
    """
)
_DELETE_THE_REST = [
    text("DELETE FROM api_keys WHERE project = :project"),
    text("DELETE FROM limits WHERE project = :project"),
    text("DELETE FROM settlements WHERE project = :project"),
    text("DELETE FROM webhook_endpoints WHERE project = :project"),
]
_DELIVERIES = text(
    """
    DELETE FROM webhook_deliveries WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM webhook_deliveries WHERE project = :project AND created_at < :before LIMIT :limit FOR UPDATE
    )) RETURNING event_id
    """
)
DELETIONS: Mapping[str, TextClause] = {
    "responses": _RESPONSES,
    "batches": _BATCHES,
    "conversations": _CONVERSATIONS,
    "deliveries": _DELIVERIES,
    "parts": _OPEN_PARTS,
    "files": _FILES,
}
"""What goes, in this order. What was to become a file, and files, are only dropped (store/files/expiry.py)."""
_FINISH = text("UPDATE projects SET erase_at = NULL, erased_at = now() WHERE id = :project AND erase_at = :at")


@dataclass(frozen=True, slots=True)
class Erasure:
    """A project that is to be erased now."""

    project: str
    at: datetime
    """When its erasure is due."""
    is_archived: bool
    """Else only what was made before `at` goes."""

    @property
    def _wanted(self) -> dict[str, Any]:
        return {"project": self.project, "before": _NEVER if self.is_archived else self.at}

    async def unfinished(self, db: Database, limit: int) -> list[str]:
        """The ids of some of its unfinished responses, which must be cancelled before the others are deleted."""
        return [row.id for row in await db.execute(_UNFINISHED, {**self._wanted, "limit": limit})]

    async def lock_unfinished_batches(self, connection: AsyncConnection) -> list[str]:
        """The ids of its unfinished batches, which must be ended before they are deleted."""
        return [row.id for row in await connection.execute(_UNFINISHED_BATCHES, self._wanted)]

    async def delete(self, db: Database, what: str, limit: int) -> int:
        """Deletes about `limit` of what one of DELETIONS names, once its responses have all ended; returns how many."""
        return len(await db.execute(DELETIONS[what], {**self._wanted, "limit": limit}))

    async def finish(self, connection: AsyncConnection) -> bool:
        """Deletes its keys, limits and webhook endpoints, if it is archived, and notes the end of the erasure.

        Returns False if somebody else has, or if the project is to be erased at another time.
        """
        if not (await connection.execute(_FINISH, {"project": self.project, "at": self.at})).rowcount:
            return False
        for statement in _DELETE_THE_REST if self.is_archived else ():
            await connection.execute(statement, {"project": self.project})
        return True


async def due(db: Database, seconds: float = SETTLE_SECONDS) -> list[Erasure]:
    """The projects whose time came `seconds` ago."""
    rows = await db.execute(_DUE, {"seconds": seconds})
    return [Erasure(row.id, row.erase_at, row.is_archived) for row in rows]
