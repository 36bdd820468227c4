"""Merging and deleting what is old: logs of finished responses, the responses themselves, and records."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Row, delete, select, text

from app.protocol.events import frames
from app.store.database import Database
from app.store.rows import PAGE_BYTES
from app.store.tables import responses

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
    SELECT response_id, sum(octet_length(frames)) AS bytes FROM chunks
    WHERE response_id = ANY(CAST(:ids AS text[])) GROUP BY response_id
    """
)
_READ_CHUNKS = text(
    """
    SELECT response_id, first, last, attempt, frames, compressed FROM chunks
    WHERE response_id = ANY(CAST(:ids AS text[])) ORDER BY response_id, first
    """
)
_INSERT_MERGED = text(
    """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, compressed)
    VALUES (:id, :first, :last, :attempt, :final, '', :frames, true)
    """
)
_MARK_MERGED = text("UPDATE responses SET log = 'merged' WHERE id = ANY(CAST(:ids AS text[]))")
_MARK_DELETED = text(
    """
    UPDATE responses SET log = 'deleted' WHERE id IN (
        SELECT id FROM responses WHERE log = 'merged' AND finished_at < :before
        ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id
    """
)
_DELETE_CHUNKS = text("DELETE FROM chunks WHERE response_id = ANY(CAST(:ids AS text[]))")

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
        for together in _groups(sizes):
            rows = (await connection.execute(_READ_CHUNKS, {"ids": together})).all()
            logs = groupby(rows, attrgetter("response_id"))
            if merged := [page for response_id, log in logs for page in _merged(response_id, list(log))]:
                await connection.execute(_DELETE_CHUNKS, {"ids": [page["id"] for page in merged]})
                await connection.execute(_INSERT_MERGED, merged)
        await connection.execute(_MARK_MERGED, {"ids": ids})
    return len(ids)


def _groups(sizes: Mapping[str, int]) -> list[list[str]]:
    """The logs that are read together: MERGED_BYTES of them, or a larger one alone."""
    groups: list[list[str]] = []
    held = MERGED_BYTES
    for response_id, size in sizes.items():
        if held + size > MERGED_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(response_id)
        held += size
    return groups


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
    try:
        found = frames.split(zlib.decompress(row.frames) if row.compressed else row.frames)
    except zlib.error:
        return None
    return found if len(found) == row.last - row.first + 1 else None


def _merged_row(response_id: str, first: int, events: Sequence[bytes], attempt: int) -> dict[str, Any]:
    last, encoded = first + len(events) - 1, zlib.compress(b"".join(events))
    return {"id": response_id, "first": first, "last": last, "attempt": attempt, "frames": encoded, "final": False}


async def delete_events(db: Database, before: datetime, limit: int = 1000) -> int:
    """Deletes the merged events of up to `limit` responses that ended before then; returns how many."""
    async with db.begin() as connection:
        ids = list((await connection.execute(_MARK_DELETED, {"before": before, "limit": limit})).scalars())
        await connection.execute(_DELETE_CHUNKS, {"ids": ids})
    return len(ids)


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
