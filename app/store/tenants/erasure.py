"""Erasing what a project has: in batches, each committed, so that whoever comes next goes on where one was killed.

What is left is the project's row, its entries in the audit log, and its usage, which is the operators' ledger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.tables import UNFINISHED_BATCHES

SETTLE_SECONDS = 10.0
"""Before an erasure begins: a process without Redis takes 5 s to learn that the project's keys have ended."""
_START = datetime(1970, 1, 1, tzinfo=UTC)

_DUE = text(
    """
    SELECT id, erase_at, archived_at IS NOT NULL AS is_archived FROM projects
    WHERE erase_at < now() - make_interval(secs => :seconds) ORDER BY erase_at
    """
)
_IS_OLD = "(CAST(:before AS timestamptz) IS NULL OR {0}inserted_at < CAST(:before AS timestamptz))"
# Lines of a batch go with it, whenever it made them.
_IS_OLD_RESPONSE = f"""
    ({_IS_OLD} OR EXISTS (
        SELECT FROM batches b WHERE b.id = {{0}}batch_id AND b.created_at < CAST(:before AS timestamptz)))
"""
_IS_OLDER = "(CAST(:before AS timestamptz) IS NULL OR created_at < CAST(:before AS timestamptz))"
# No index has the project: it would make each insert, claim and end dearer. So each of the indexes of unfinished
# responses is read, and then those of ended ones in the order of their ends, which never change, page by page.
_UNFINISHED = text(
    " UNION ALL ".join(
        f"(SELECT id FROM responses WHERE project = :project AND {_IS_OLD_RESPONSE.format('')} AND {status}"
        " LIMIT :limit)"
        for status in (
            "status = 'queued' AND sent_at IS NULL",
            "status = 'queued' AND sent_at IS NOT NULL",
            "status = 'in_progress' AND worker IS NULL",
            "status = 'in_progress' AND worker IS NOT NULL",
        )
    )
)
_DELETE_PAGE = [
    text(
        f"""
        WITH page AS MATERIALIZED (
            SELECT id, project, inserted_at, finished_at, batch_id FROM responses
            WHERE {kept} AND finished_at IS NOT NULL AND finished_at >= :at AND (finished_at, id) > (:at, :id)
            ORDER BY finished_at, id LIMIT :limit
        ), gone AS (
            DELETE FROM responses WHERE id = ANY(ARRAY(
                SELECT id FROM responses WHERE id = ANY(ARRAY(
                    SELECT id FROM page p WHERE project = :project AND {_IS_OLD_RESPONSE.format("p.")}
                )) ORDER BY id FOR UPDATE
            ))
            RETURNING id
        )
        SELECT finished_at, id, (SELECT count(*) FROM gone) AS deleted FROM page
        ORDER BY finished_at DESC, id DESC LIMIT 1
        """
    )
    for kept in ("store", "NOT store")
]


def _locked(table: str, is_old: str) -> str:
    """Locks some rows of the project in the order of their ids, as everybody does who waits for several rows."""
    return f"""
        SELECT id FROM {table} WHERE id = ANY(ARRAY(
            SELECT id FROM {table} WHERE project = :project AND {is_old} LIMIT :limit
        )) ORDER BY id FOR UPDATE
    """


# A batch that has ended makes no more responses. What its lines came to goes with it, once they have all ended.
_END_BATCHES = text(
    f"""
    UPDATE batches SET status = 'cancelled', cancelled_at = now() WHERE id = ANY(ARRAY(
        SELECT id FROM batches WHERE project = :project AND {_IS_OLDER} AND status IN ({UNFINISHED_BATCHES})
        ORDER BY id FOR NO KEY UPDATE
    ))
    """
)
_DELETE_BATCHES = text(
    f"""
    WITH gone AS (
        DELETE FROM batches WHERE id = ANY(ARRAY({_locked("batches", _IS_OLDER)})) RETURNING id
    ), results AS (DELETE FROM batch_results r USING gone g WHERE r.batch_id = g.id)
    SELECT id FROM gone
    """
)
_DELETE_CONVERSATIONS = text(
    f"DELETE FROM conversations WHERE id = ANY(ARRAY({_locked('conversations', _IS_OLD.format(''))}))"
)
# What maintenance finds and deletes then: the files of a project are too many bytes for one statement.
_DROP_FILES = text(
    f"""
    WITH chosen AS ({_locked("files", _IS_OLDER)}), gone AS (
        DELETE FROM files f USING chosen c WHERE f.id = c.id RETURNING f.id
    ), dropped AS (
        UPDATE file_parts p SET state = 'dropped', bytes = 0, file_id = NULL, start = NULL
        FROM gone g WHERE p.file_id = g.id
    )
    SELECT id FROM gone
    """
)
_DROP_UPLOADS = text(
    f"""
    WITH chosen AS ({_locked("uploads", _IS_OLDER)}), dropped AS (
        UPDATE file_parts p SET state = 'dropped', bytes = 0, upload_id = NULL FROM chosen c WHERE p.upload_id = c.id
    ), gone AS (
        DELETE FROM uploads u USING chosen c WHERE u.id = c.id RETURNING u.id
    )
    SELECT id FROM gone
    """
)
_DROP_OPEN_PARTS = text(
    f"""
    UPDATE file_parts SET state = 'dropped', bytes = 0, upload_id = NULL
    WHERE project = :project AND state = 'open' AND {_IS_OLDER} RETURNING id
    """
)
_DELETE_THE_REST = [
    text(f"DELETE FROM {table} WHERE project = :project")
    for table in ("api_keys", "service_accounts", "limits", "settlements")
]
_FINISH = text("UPDATE projects SET erase_at = NULL, erased_at = now() WHERE id = :project AND erase_at = :at")


@dataclass(frozen=True, slots=True)
class Erasure:
    """A project that is to be erased now."""

    project: str
    at: datetime
    """Since when."""
    is_archived: bool
    """Else only what was made before `at` goes."""

    @property
    def _wanted(self) -> dict[str, Any]:
        return {"project": self.project, "before": None if self.is_archived else self.at}

    async def unfinished(self, db: Database, limit: int) -> list[str]:
        """The ids of some of its unfinished responses, which must be cancelled before the others are deleted."""
        rows = await db.execute(_UNFINISHED, {**self._wanted, "limit": limit})
        return [row.id for row in rows]

    async def delete_responses(self, db: Database, limit: int) -> AsyncIterator[int]:
        """Deletes its ended responses; yields how many, for each `limit` responses of all projects."""
        for statement in _DELETE_PAGE:
            cursor: dict[str, Any] = {"at": _START, "id": ""}
            while rows := await db.execute(statement, {**self._wanted, **cursor, "limit": limit}):
                cursor = {"at": rows[0].finished_at, "id": rows[0].id}
                yield rows[0].deleted

    async def end_batches(self, db: Database) -> None:
        """Ends its unfinished batches: none of them makes a response any more."""
        async with db.autocommit() as connection:
            await connection.execute(_END_BATCHES, self._wanted)

    async def delete_batches(self, db: Database, limit: int) -> int:
        """Deletes up to `limit` of its batches, whose responses have all ended; returns how many."""
        return len(await db.execute(_DELETE_BATCHES, {**self._wanted, "limit": limit}))

    async def delete_conversations(self, db: Database, limit: int) -> int:
        """Deletes up to `limit` of its conversations; returns how many."""
        async with db.autocommit() as connection:
            return (await connection.execute(_DELETE_CONVERSATIONS, {**self._wanted, "limit": limit})).rowcount

    async def drop_files(self, db: Database, limit: int) -> int:
        """Drops up to `limit` of its files, and of what was to become one (store/files/expiry.py); returns how many."""
        values = {**self._wanted, "limit": limit}
        dropped = await db.execute(_DROP_OPEN_PARTS, self._wanted)
        for statement in (_DROP_UPLOADS, _DROP_FILES):
            dropped = [*dropped, *await db.execute(statement, values)]
        return len(dropped)

    async def finish(self, connection: AsyncConnection) -> bool:
        """Deletes its keys, service accounts and limits, if it is archived, and notes the end of the erasure.

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
