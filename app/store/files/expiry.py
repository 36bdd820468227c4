"""What maintenance deletes: files that expired, parts that nobody will finish, uploads that ended, dropped blocks.

Copies share the work: each takes the rows it can lock at once.
"""

from __future__ import annotations

from sqlalchemy import text

from app.store.database import Database
from app.store.files.files import DELETE, IS_READ
from app.store.files.uploads import DROP_PARTS

BLOCKS_AT_ONCE = 64
"""Blocks that one statement deletes: a quarter of a second, perhaps."""
KEPT_SECONDS = 86400
"""How long an upload that has ended is known."""

_DELETE_EXPIRED = text(
    DELETE.format(
        f"""
        SELECT id FROM files WHERE expires_at <= now() AND NOT {IS_READ}
        ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED
        """
    )
)
_DROP_ABANDONED = text(
    """
    UPDATE file_parts SET state = 'dropped', bytes = 0, upload_id = NULL WHERE id IN (
        SELECT id FROM file_parts WHERE state = 'open' AND touched_at < now() - make_interval(secs => :seconds)
        LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id
    """
)
_EXPIRED_UPLOADS = text(
    """
    SELECT id FROM uploads WHERE expires_at <= now() AND (
        status = 'pending' AND EXISTS (SELECT FROM file_parts p WHERE p.upload_id = uploads.id)
        OR expires_at <= now() - make_interval(secs => :kept))
    ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED
    """
)
_DROP_PARTS = text(DROP_PARTS)
_DELETE_UPLOADS = text(
    "DELETE FROM uploads WHERE id = ANY(:uploads) AND expires_at <= now() - make_interval(secs => :kept)"
)
_DELETE_BLOCKS = text(
    """
    DELETE FROM file_blocks WHERE (part_id, number) IN (
        SELECT b.part_id, b.number FROM file_parts p JOIN file_blocks b ON b.part_id = p.id
        WHERE p.state = 'dropped' LIMIT :limit FOR UPDATE OF b SKIP LOCKED)
    RETURNING number
    """
)
_DELETE_PARTS = text(
    """
    DELETE FROM file_parts WHERE id IN (
        SELECT p.id FROM file_parts p
        WHERE p.state = 'dropped' AND NOT EXISTS (SELECT FROM file_blocks b WHERE b.part_id = p.id)
        LIMIT :limit FOR UPDATE OF p SKIP LOCKED)
    RETURNING id
    """
)


async def delete_expired(db: Database, limit: int = 500) -> int:
    """Deletes up to `limit` files whose time has come; returns how many."""
    return len(await db.execute(_DELETE_EXPIRED, {"limit": limit}))


async def drop_abandoned(db: Database, seconds: float, limit: int = 500) -> int:
    """Drops parts that got no block for `seconds`, and those of uploads that expired; returns how many."""
    abandoned = await db.execute(_DROP_ABANDONED, {"seconds": seconds, "limit": limit})
    async with db.begin() as connection:
        kept = {"kept": KEPT_SECONDS}
        expired = list((await connection.execute(_EXPIRED_UPLOADS, {**kept, "limit": limit})).scalars())
        if expired:
            await connection.execute(_DROP_PARTS, {"uploads": expired})
            await connection.execute(_DELETE_UPLOADS, {**kept, "uploads": expired})
    return len(abandoned) + len(expired)


async def delete_dropped(db: Database, limit: int = 500) -> None:
    """Deletes what was dropped, a few blocks at a time."""
    while await db.execute(_DELETE_BLOCKS, {"limit": BLOCKS_AT_ONCE}):
        pass
    while await db.execute(_DELETE_PARTS, {"limit": limit}):
        pass
