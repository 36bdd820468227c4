"""Merging and deleting what is old: logs of finished responses, the responses themselves, and records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import text

from app.heavy import off_loop
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, size_of
from app.sizes import grouped
from app.store.database import Database
from app.store.responses import logs
from app.store.responses.final_rows import INSERT_CHUNKS
from app.store.rows import CHUNKS, LOG_PAGE_BYTES
from app.store.tables import UNFINISHED_BATCHES
from config.logging.context import about

log = logging.getLogger("longhaul.store")

_NOW = text("SELECT now()")
_MERGEABLE = text(
    "SELECT id FROM responses WHERE finished_at < :before AND log = 'live' ORDER BY finished_at LIMIT :limit"
)
# SKIP LOCKED: whoever cancels or deletes the response, or merges its log in another copy of maintenance, goes first.
_LOCK = text("SELECT id FROM responses WHERE id = :id AND log = 'live' FOR UPDATE SKIP LOCKED")
_MARK_MERGED = text(
    """
    UPDATE responses SET log = 'merged',
        log_bytes = (SELECT coalesce(sum(c.bytes), 0) FROM chunks c WHERE c.response_id = :id)
    WHERE id = :id
    """
)
# SKIP LOCKED: copies of maintenance share the work and do not wait for each other.
_MARK_DELETED = text(
    """
    UPDATE responses SET log = 'deleted', log_bytes = 0 WHERE id IN (
        SELECT id FROM responses WHERE log = 'merged' AND finished_at < :before
        ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id
    """
)
_DELETE_CHUNKS = text("DELETE FROM chunks WHERE response_id = ANY(CAST(:ids AS text[]))")

_KEEPING_DAYS = text("SELECT id, conversation_days FROM projects WHERE conversation_days IS NOT NULL ORDER BY id")
# Two statements: once a conversation is locked, nobody adds an item, and the second one sees all that were added.
_LOCK_OLD = text(
    """
    SELECT id FROM conversations WHERE project = :project AND changed_at < now() - make_interval(days => :days)
    ORDER BY changed_at LIMIT :limit FOR UPDATE SKIP LOCKED
    """
)
# What is kept gets the time of its last change, so that the next look passes it by.
_DELETE_OLD = text(
    """
    WITH locked AS (
        SELECT c.id, CASE WHEN EXISTS (
            SELECT FROM responses r WHERE r.conversation_id = c.id AND r.finished_at IS NULL
        ) THEN now() ELSE (
            SELECT added_at FROM conversation_items i WHERE i.conversation_id = c.id ORDER BY position DESC LIMIT 1
        ) END AS used_at
        FROM conversations c WHERE c.id = ANY(CAST(:ids AS text[]))
    ), kept AS (
        UPDATE conversations c SET changed_at = l.used_at FROM locked l
        WHERE c.id = l.id AND l.used_at >= now() - make_interval(days => :days)
    )
    DELETE FROM conversations c USING locked l
    WHERE c.id = l.id AND coalesce(l.used_at < now() - make_interval(days => :days), true)
    """
)

# A line of a batch that has not ended is still to be written into the batch's files. The partial indexes are on `store`
# and `NOT store`: with a parameter in its place they would not be used.
_DELETE_EXPIRED = {
    is_stored: text(
        f"""
        DELETE FROM responses WHERE id IN (
            SELECT r.id FROM responses r WHERE {"r.store" if is_stored else "NOT r.store"} AND r.finished_at < :before
                AND (r.batch_id IS NULL OR NOT EXISTS (
                    SELECT FROM batches b WHERE b.id = r.batch_id AND b.status IN ({UNFINISHED_BATCHES})))
            ORDER BY r.finished_at LIMIT :limit FOR UPDATE OF r SKIP LOCKED)
        """
    )
    for is_stored in (True, False)
}
_DELETE_BATCHES = text(
    """
    WITH gone AS (
        DELETE FROM batches WHERE id IN (
            SELECT id FROM batches WHERE coalesce(completed_at, failed_at, expired_at, cancelled_at) < :before
            LIMIT :limit FOR UPDATE SKIP LOCKED)
        RETURNING id
    ), results AS (DELETE FROM batch_results r USING gone g WHERE r.batch_id = g.id)
    SELECT id FROM gone
    """
)

_RECORDS = {
    "usage": ("ctid", "minute"),
    "api_keys": ("id", "least(revoked_at, expires_at)"),
    "bulk_actions": ("id", "finished_at"),
}
"""Tables of records: what names a row, and when it ended. Of keys, maintenance may read little."""
_DELETE_RECORDS = [
    text(
        f"""
        DELETE FROM {table} WHERE {name} = ANY(ARRAY(
            SELECT {name} FROM {table} WHERE {ended} < :before ORDER BY {ended} LIMIT :limit FOR UPDATE SKIP LOCKED))
        """
    )
    for table, (name, ended) in _RECORDS.items()
]
# Nobody but the owner of the tables may delete entries: the function keeps those of the last thirty days.
_DELETE_ENTRIES = text("SELECT delete_audit_entries(:before, :limit)")


async def now(db: Database) -> datetime:
    """The time by Postgres' clock: a process whose own clock is wrong must not delete what others keep."""
    found: datetime = (await db.execute(_NOW))[0][0]
    return found


async def merge_finished(db: Database, before: datetime, limit: int = 100) -> int:
    """Merges the logs of up to `limit` responses that ended before then, one after the other; returns how many.

    Readers see the same events before and after, from a row for each page. Token ids and steps are dropped, because
    nothing resumes a finished response. A log that cannot be read stays as it is, and counts as merged: it must not
    keep the others from being merged.
    """
    ids = [row.id for row in await db.execute(_MERGEABLE, {"before": before, "limit": limit})]
    return sum([await _merge(db, response_id) for response_id in ids])


async def _merge(db: Database, response_id: str) -> bool:
    """A log that has ended changes no more, so it is read and packed before its row is locked."""
    chunks = await logs.read_events(db, response_id)
    pages = await off_loop(partial(_pages, chunks), size_of(chunks))
    async with db.begin() as connection:
        if (await connection.execute(_LOCK, {"id": response_id})).first() is None:
            return False
        if pages is not None:
            await connection.execute(_DELETE_CHUNKS, {"ids": [response_id]})
            await connection.execute(INSERT_CHUNKS, pages)
        await connection.execute(_MARK_MERGED, {"id": response_id})
    return True


def _pages(chunks: Sequence[Chunk]) -> dict[str, list[Any]] | None:
    """The rows of a merged log. Each has LOG_PAGE_BYTES of events, or one chunk: a reader holds one of them.

    None: the stored events are not those that the rows should have.
    """
    for chunk in chunks:
        if len(frames.split(chunk.frames)) != chunk.last - chunk.first + 1:
            with about(chunk.response_id):
                log.error("the log of the response cannot be read, and is not merged")
            return None
    sizes = {number: len(chunk.frames) for number, chunk in enumerate(chunks)}
    groups = ([chunks[number] for number in numbers] for numbers in grouped(sizes, LOG_PAGE_BYTES))
    return CHUNKS.named_parameters([_page(group) for group in groups])


def _page(chunks: Sequence[Chunk]) -> Chunk:
    events = b"".join(chunk.frames for chunk in chunks)
    return replace(chunks[-1], first=chunks[0].first, frames=events)


async def delete_events(db: Database, before: datetime, limit: int = 1000) -> int:
    """Deletes the merged events of up to `limit` responses that ended before then; returns how many."""
    async with db.begin() as connection:
        ids = list((await connection.execute(_MARK_DELETED, {"before": before, "limit": limit})).scalars())
        await connection.execute(_DELETE_CHUNKS, {"ids": ids})
    return len(ids)


async def delete_conversations(db: Database, limit: int = 500) -> int:
    """Deletes the conversations that have not changed for the time that their project keeps them; returns how many.

    It passes by those of unfinished responses. A response that is inserted at that very moment finds its conversation
    gone, as after a client's deletion.
    """
    deleted = 0
    for row in await db.execute(_KEEPING_DAYS):
        found = [""]
        while found:
            async with db.begin() as connection:
                old = {"project": row.id, "days": row.conversation_days, "limit": limit}
                found = list((await connection.execute(_LOCK_OLD, old)).scalars())
                wanted = {"ids": found, "days": row.conversation_days}
                deleted += (await connection.execute(_DELETE_OLD, wanted)).rowcount if found else 0
    return deleted


async def delete_records(db: Database, before: datetime, limit: int = 1000) -> int:
    """Deletes up to `limit` rows each of the ledger, the audit log, bulk actions and keys that ended before then.

    Entries of the audit log stay for thirty days at least. Returns how many it deleted.
    """
    async with db.autocommit() as connection:
        deleted: int = (await connection.execute(_DELETE_ENTRIES, {"before": before, "limit": limit})).scalar_one()
        for statement in _DELETE_RECORDS:
            deleted += (await connection.execute(statement, {"before": before, "limit": limit})).rowcount
    return deleted


async def delete_batches(db: Database, before: datetime, limit: int = 4) -> int:
    """Deletes up to `limit` batches that ended before then, with what their lines came to; returns how many.

    Their files stay until they expire, or somebody deletes them.
    """
    async with db.begin() as connection:
        return len((await connection.execute(_DELETE_BATCHES, {"before": before, "limit": limit})).all())


async def delete_expired(db: Database, stored: datetime, unstored: datetime, limit: int = 1000) -> int:
    """Deletes up to `limit` stored responses that ended before `stored`, and as many others before `unstored`.

    Returns how many it deleted.
    """
    deleted = 0
    async with db.autocommit() as connection:
        for is_stored, before in ((True, stored), (False, unstored)):
            result = await connection.execute(_DELETE_EXPIRED[is_stored], {"before": before, "limit": limit})
            deleted += result.rowcount
    return deleted
