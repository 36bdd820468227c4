"""Drains: the workers that operators take out of service. What they run goes on; nothing more is sent to them.

A drain is of a node, not of a row of `workers`: a worker that loses its lease comes back drained. It ends by the
operator, or with its worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database

KEPT_SECONDS = 86_400.0
"""How long a drain is kept whose worker is gone: a process that was frozen may come back."""


@dataclass(frozen=True, slots=True)
class Node:
    """A worker that is registered, and whether it is drained."""

    node: str
    queue: str
    draining_since: datetime | None


_NODES = text(
    """
    SELECT w.node, w.queue, d.since AS draining_since FROM workers w LEFT JOIN drains d ON d.node = w.node
    ORDER BY w.node
    """
)
_DRAIN = text("INSERT INTO drains (node, reason, actor) VALUES (:node, :reason, :actor) ON CONFLICT DO NOTHING")
_UNDRAIN = text("DELETE FROM drains WHERE node = :node")
_NOTE_ABSENCE = text(
    """
    UPDATE drains d SET absent_since = CASE WHEN d.absent_since IS NULL THEN now() END
    WHERE (d.absent_since IS NOT NULL) = EXISTS (SELECT FROM workers w WHERE w.node = d.node)
    """
)
_FORGET = text(
    """
    DELETE FROM drains d WHERE d.absent_since < now() - make_interval(secs => :seconds)
        AND NOT EXISTS (SELECT FROM workers w WHERE w.node = d.node)
    """
)


async def nodes(connection: AsyncConnection) -> dict[str, Node]:
    """The workers that are registered, by their nodes."""
    return {row.node: Node(*row) for row in await connection.execute(_NODES)}


async def drain(connection: AsyncConnection, node: str, reason: str | None, actor: str | None) -> bool:
    """False: it is drained already."""
    return bool((await connection.execute(_DRAIN, {"node": node, "reason": reason, "actor": actor})).rowcount)


async def undrain(connection: AsyncConnection, node: str) -> bool:
    """False: it is not drained."""
    return bool((await connection.execute(_UNDRAIN, {"node": node})).rowcount)


async def forget(db: Database) -> None:
    """Deletes the drains of workers that have been gone for long."""
    await db.execute(_NOTE_ABSENCE)
    await db.execute(_FORGET, {"seconds": KEPT_SECONDS})
