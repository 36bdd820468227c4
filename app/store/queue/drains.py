"""Drains: the workers that operators take out of service. What they run goes on; nothing more is sent to them.

A drain is of a node, not of a row of `workers`: a worker that loses its lease comes back drained. It ends by the
operator, or with its worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.tables import drains, workers

KEPT = "interval '1 day'"
"""How long a drain is kept whose worker is gone: a process that was frozen may come back."""


@dataclass(frozen=True, slots=True)
class Node:
    """A worker that is registered, and whether it is drained."""

    node: str
    queue: str
    draining_since: datetime | None


async def nodes(connection: AsyncConnection) -> dict[str, Node]:
    """The workers that are registered, by their nodes."""
    columns = workers.c.node, workers.c.queue, drains.c.since.label("draining_since")
    found = select(*columns).outerjoin_from(workers, drains, drains.c.node == workers.c.node).order_by(workers.c.node)
    return {row.node: Node(*row) for row in await connection.execute(found)}


async def drain(connection: AsyncConnection, node: str, reason: str | None, actor: str | None) -> bool:
    """False: it is drained already."""
    added = insert(drains).values(node=node, reason=reason, actor=actor, since=func.now())
    return bool((await connection.execute(added.on_conflict_do_nothing())).rowcount)


async def undrain(connection: AsyncConnection, node: str) -> bool:
    """False: it is not drained."""
    return bool((await connection.execute(delete(drains).where(drains.c.node == node))).rowcount)


_HAS_WORKER = "EXISTS (SELECT FROM workers w WHERE w.node = d.node)"
_NOTE_ABSENCE = text(
    f"""
    UPDATE drains d SET absent_since = CASE WHEN NOT {_HAS_WORKER} THEN now() END
    WHERE (d.absent_since IS NOT NULL) = {_HAS_WORKER}
    """
)
_FORGET = text(f"DELETE FROM drains d WHERE d.absent_since < now() - {KEPT} AND NOT {_HAS_WORKER}")


async def forget(db: Database) -> None:
    """Deletes the drains of workers that have been gone for long."""
    await db.execute(_NOTE_ABSENCE)
    await db.execute(_FORGET)
