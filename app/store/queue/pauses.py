"""Pauses: what operators keep in its line. Inserts and dispatches read them with the state of a queue (facts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.tables import pauses


@dataclass(frozen=True, slots=True)
class PauseRow:
    queue: str
    project: str | None
    """None: all projects."""
    model: str
    since: datetime
    reason: str | None
    actor: str | None
    """The id of the operator's API key; None: a command on a machine of the operators."""


async def pause(
    connection: AsyncConnection, queue: str, project: str | None, model: str, reason: str | None, actor: str | None
) -> bool:
    """False: it is paused already."""
    values = {"queue": queue, "project": project, "model": model, "reason": reason, "actor": actor}
    added = insert(pauses).values(**values, since=func.now())
    return bool((await connection.execute(added.on_conflict_do_nothing())).rowcount)


async def resume(connection: AsyncConnection, queue: str, project: str | None) -> bool:
    """False: it is not paused."""
    which = (pauses.c.queue == queue, pauses.c.project.is_not_distinct_from(project))
    return bool((await connection.execute(delete(pauses).where(*which))).rowcount)


async def read_pauses(connection: AsyncConnection) -> Sequence[PauseRow]:
    """All of them, those of whole models first."""
    ordered = select(pauses).order_by(pauses.c.model, pauses.c.project.nulls_first())
    return [PauseRow(**row._mapping) for row in await connection.execute(ordered)]


async def read(db: Database) -> Sequence[PauseRow]:
    async with db.autocommit() as connection:
        return await read_pauses(connection)
