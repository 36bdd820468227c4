"""Deletions by maintenance: of expired files, of parts that nobody will finish, and of dropped blocks.

Copies share the work: each takes the rows it can lock at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from app.store.database import Database
from app.store.files.files import delete_unread
from app.store.tables import UNFINISHED_BATCHES

BLOCKS_AT_ONCE = 64
"""Blocks that one statement deletes: a quarter of a second, perhaps."""
PARTS_AT_ONCE = 64
"""Parts whose blocks one statement looks for: it would look at all that were dropped as often as there are blocks."""

_EXPIRED = text(
    f"""
    SELECT f.id FROM files f WHERE f.expires_at <= now() AND NOT EXISTS (
        SELECT FROM batches b WHERE b.input_file = f.id AND b.status IN ({UNFINISHED_BATCHES}))
    ORDER BY f.expires_at LIMIT :limit FOR UPDATE OF f SKIP LOCKED
    """
)
_DROP_ABANDONED = text(
    """
    UPDATE file_parts SET state = 'dropped', bytes = 0 WHERE id IN (
        SELECT id FROM file_parts WHERE state = 'open' AND touched_at < now() - make_interval(secs => :seconds)
        LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id
    """
)
_DROPPED = text("SELECT id FROM file_parts WHERE state = 'dropped' ORDER BY touched_at LIMIT :limit")
_DELETE_BLOCKS = text(
    """
    DELETE FROM file_blocks WHERE (part_id, number) IN (
        SELECT part_id, number FROM file_blocks WHERE part_id = ANY(CAST(:parts AS text[]))
        LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING number
    """
)
_DELETE_PARTS = text(
    """
    DELETE FROM file_parts WHERE id IN (
        SELECT p.id FROM file_parts p
        WHERE p.id = ANY(CAST(:parts AS text[])) AND NOT EXISTS (SELECT FROM file_blocks b WHERE b.part_id = p.id)
        FOR UPDATE OF p SKIP LOCKED)
    RETURNING id
    """
)


async def delete_expired(db: Database, limit: int = 500) -> int:
    """Deletes up to `limit` files whose time has come; returns how many."""
    async with db.begin() as connection:
        return await delete_unread(connection, (await connection.execute(_EXPIRED, {"limit": limit})).scalars().all())


async def drop_abandoned(db: Database, seconds: float, limit: int = 500) -> int:
    """Drops parts that got no block for `seconds`; returns how many."""
    return len(await db.execute(_DROP_ABANDONED, {"seconds": seconds, "limit": limit}))


async def delete_dropped(db: Database) -> None:
    """Deletes what was dropped: a few parts at a time, a few of their blocks at a time."""
    deleted: Sequence[object] = [None]
    while deleted and (found := await db.execute(_DROPPED, {"limit": PARTS_AT_ONCE})):
        parts = {"parts": [row.id for row in found]}
        while await db.execute(_DELETE_BLOCKS, {**parts, "limit": BLOCKS_AT_ONCE}):
            pass
        deleted = await db.execute(_DELETE_PARTS, parts)
