"""What maintenance deletes: files that expired, parts that nobody will finish, dropped blocks.

Copies share the work: each takes the rows it can lock at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from app.store.database import Database
from app.store.files.files import DELETE, IS_READ

BLOCKS_AT_ONCE = 64
"""Blocks that one statement deletes: a quarter of a second, perhaps."""
PARTS_AT_ONCE = 64
"""Parts whose blocks one statement looks for: it would look at all that were dropped as often as there are blocks."""

_EXPIRED = text(
    f"""
    SELECT id FROM files WHERE expires_at <= now() AND NOT {IS_READ}
    ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED
    """
)
_DELETE_UNREAD = text(DELETE.format(f"SELECT id FROM files WHERE id = ANY(CAST(:ids AS text[])) AND NOT {IS_READ}"))
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
        ids = list((await connection.execute(_EXPIRED, {"limit": limit})).scalars())
        # A statement of its own: one that locks a file does not see the batch that was made of it meanwhile.
        return len((await connection.execute(_DELETE_UNREAD, {"ids": ids})).all()) if ids else 0


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
