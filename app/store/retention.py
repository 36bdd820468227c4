"""Merging and deleting what is old: logs of finished responses, the responses themselves, and records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Row, delete, select, text

from app.heavy import beside_loop
from app.protocol.events import frames
from app.sizes import grouped
from app.store.database import Database
from app.store.packing import pack_events, unpack_events
from app.store.rows import PAGE_BYTES
from app.store.tables import LOG_BYTES, responses

log = logging.getLogger("longhaul.store")

MERGED_BYTES = 1024 * 1024
"""Logs of so many bytes are merged together: a short one takes less time than the three statements that merge it."""

_NOW = text("SELECT now()")
# SKIP LOCKED: copies of maintenance share the work and do not wait for each other.
_MERGEABLE = text(
    """
    SELECT id FROM responses WHERE finished_at < :before AND log = 'live'
    ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
    """
)
_SIZES = text(
    """
    SELECT response_id, sum(size) AS bytes FROM chunks
    WHERE response_id = ANY(CAST(:ids AS text[])) GROUP BY response_id
    """
)
_READ_CHUNKS = text(
    """
    SELECT response_id, first, last, attempt, frames FROM chunks
    WHERE response_id = ANY(CAST(:ids AS text[])) ORDER BY response_id, first
    """
)
_INSERT_MERGED = text(
    """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    VALUES (:id, :first, :last, :attempt, :final, '', :frames, :size)
    """
)
_MARK_MERGED = text(
    f"UPDATE responses SET log = 'merged', log_bytes = {LOG_BYTES} WHERE id = ANY(CAST(:ids AS text[]))"
)
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

_RECORDS = {"usage": "minute", "audit_logs": "effective_at", "api_keys": "least(revoked_at, expires_at)"}
"""Tables of records, and when a row of each ended."""
_DELETE_RECORDS = [
    text(
        f"""
        DELETE FROM {table} WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {table} WHERE {ended} < :before ORDER BY {ended} LIMIT :limit FOR UPDATE SKIP LOCKED))
        """
    )
    for table, ended in _RECORDS.items()
]


async def now(db: Database) -> datetime:
    """The time by Postgres' clock: a process whose own clock is wrong must not delete what others keep."""
    async with db.autocommit() as connection:
        found: datetime = (await connection.execute(_NOW)).scalar_one()
    return found


async def merge_finished(db: Database, before: datetime, limit: int = 100) -> int:
    """Merges the logs of up to `limit` responses that ended before then into one compressed row for each page.

    Returns how many. Readers see the same events before and after. Token ids and steps are dropped, because nothing
    resumes a finished response. A log that cannot be read stays as it is, and counts as merged: it must not keep the
    others from being merged.
    """
    async with db.begin() as connection:
        ids = list((await connection.execute(_MERGEABLE, {"before": before, "limit": limit})).scalars())
        sizes = {row.response_id: row.bytes for row in await connection.execute(_SIZES, {"ids": ids})}
        for together in grouped(sizes, MERGED_BYTES):
            rows = (await connection.execute(_READ_CHUNKS, {"ids": together})).all()
            size = sum(sizes[response_id] for response_id in together)
            if merged := await beside_loop(partial(_all_merged, rows), size):
                await connection.execute(_DELETE_CHUNKS, {"ids": [page["id"] for page in merged]})
                await connection.execute(_INSERT_MERGED, merged)
        await connection.execute(_MARK_MERGED, {"ids": ids})
    return len(ids)


def _all_merged(rows: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    """The rows of several merged logs."""
    logs = groupby(rows, attrgetter("response_id"))
    return [page for response_id, log in logs for page in _merged(response_id, list(log))]


def _merged(response_id: str, rows: Sequence[Row[Any]]) -> list[dict[str, Any]]:
    """The rows of a merged log. Each has PAGE_BYTES of events, or one event: a reader holds one of them.

    There are none if there is nothing to merge, or if the stored events are not those that the rows should have.
    """
    pages: list[list[bytes]] = [[]]
    size = 0
    for row in rows:
        if (events := _events(row)) is None:
            log.error("%s: its log cannot be read, and is not merged", response_id)
            return []
        for event in events:
            if pages[-1] and size + len(event) > PAGE_BYTES:
                pages.append([])
                size = 0
            pages[-1].append(event)
            size += len(event)
    merged: list[dict[str, Any]] = []
    for page in pages if rows else ():
        first = merged[-1]["last"] + 1 if merged else rows[0].first
        merged.append(_merged_row(response_id, first, page, rows[-1].attempt))
    if merged:
        merged[-1]["final"] = True
    return merged


def _events(row: Row[Any]) -> list[bytes] | None:
    """The encoded events of a row; None if there are more or fewer than it says."""
    found = frames.split(unpack_events(row.frames))
    return found if len(found) == row.last - row.first + 1 else None


def _merged_row(response_id: str, first: int, events: Sequence[bytes], attempt: int) -> dict[str, Any]:
    last, encoded = first + len(events) - 1, b"".join(events)
    row = {"id": response_id, "first": first, "last": last, "attempt": attempt, "final": False}
    return {**row, "frames": pack_events(encoded), "size": len(encoded)}


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
    """Deletes up to `limit` rows each of the ledger, of the audit log and of keys that ended before then.

    Returns how many it deleted.
    """
    deleted = 0
    async with db.autocommit() as connection:
        for statement in _DELETE_RECORDS:
            deleted += (await connection.execute(statement, {"before": before, "limit": limit})).rowcount
    return deleted


async def delete_expired(db: Database, stored: datetime, unstored: datetime, limit: int = 1000) -> int:
    """Deletes up to `limit` stored responses that ended before `stored`, and as many others before `unstored`.

    Returns how many it deleted.
    """
    deleted = 0
    async with db.autocommit() as connection:
        for is_stored, before in ((True, stored), (False, unstored)):
            expired = (
                select(responses.c.id)
                # Not `IS true`: the partial indexes are on `store` and `NOT store`, and would not be used.
                .where(responses.c.store if is_stored else ~responses.c.store, responses.c.finished_at < before)
                .order_by(responses.c.finished_at)
                .limit(limit)
                .with_for_update(skip_locked=True)
            )
            result = await connection.execute(delete(responses).where(responses.c.id.in_(expired.scalar_subquery())))
            deleted += result.rowcount
    return deleted
