"""Pauses: what operators keep in its line. Inserts and dispatches read them with the state of a queue (facts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database


@dataclass(frozen=True, slots=True)
class PauseRow:
    queue: str
    project: str | None
    """The paused project; None: all projects."""
    model: str
    since: datetime
    reason: str | None
    actor: str | None
    """The id of the operator's API key; None: no key was asked for."""


_PAUSE = text(
    """
    INSERT INTO pauses (queue, project, model, reason, actor) VALUES (:queue, :project, :model, :reason, :actor)
    ON CONFLICT DO NOTHING
    """
)
_RESUME = text("DELETE FROM pauses WHERE queue = :queue AND project IS NOT DISTINCT FROM CAST(:project AS text)")
_READ = text("SELECT queue, project, model, since, reason, actor FROM pauses ORDER BY model, project NULLS FIRST")


async def pause(
    connection: AsyncConnection, queue: str, project: str | None, model: str, reason: str | None, actor: str | None
) -> bool:
    """False: it is paused already."""
    values = {"queue": queue, "project": project, "model": model, "reason": reason, "actor": actor}
    return bool((await connection.execute(_PAUSE, values)).rowcount)


async def resume(connection: AsyncConnection, queue: str, project: str | None) -> bool:
    """False: it is not paused."""
    return bool((await connection.execute(_RESUME, {"queue": queue, "project": project})).rowcount)


async def read(on: Database | AsyncConnection) -> Sequence[PauseRow]:
    """All of them, those of whole models first."""
    return [PauseRow(**row._mapping) for row in await on.execute(_READ)]
