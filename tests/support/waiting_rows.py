"""Responses that wait for a dispatch, put into the table as inserts leave them, and what becomes of them there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from app.queue.message import Priority
from app.scheduling.loads import KEPT_PART, NOTHING_AHEAD, Ahead
from app.store.database import Database
from app.store.queue.dispatch import dispatch
from app.store.queue.workers import WorkerIdentity, register
from tests.support.requests import stored_request

QUEUE = "model.scripted"
_numbers = itertools.count(1)

_INSERT = text(
    """
    INSERT INTO responses (id, project, model, queue, priority, status, background, stream, store, request, created_at,
        input_bytes, cost, chain_length, context_bytes, layout, due_at, rank)
    SELECT :prefix || '-' || n, :project, 'scripted', :queue, :priority, 'queued', true, false, true,
        CAST(:request AS json), now(), 0, :cost, 1, 0, 1,
        now() + make_interval(secs => CAST(:window AS float8)),
        CAST(1000000 * (extract(epoch FROM now()) + CAST(:window AS float8)) AS bigint)
    FROM generate_series(1, :count) n ORDER BY n
    """
)


async def waiting(
    db: Database,
    project: str,
    count: int = 1,
    *,
    priority: Priority = Priority.BACKGROUND,
    cost: int = 100,
    queue: str = QUEUE,
    window: float | None = None,
) -> list[str]:
    """So many more responses of a project, which wait behind all that were made before; returns their ids in order.

    With a `window`, in seconds, they are work in windows.
    """
    priority = priority if window is None else Priority.WINDOW
    number = next(_numbers)
    values: dict[str, Any] = {
        "prefix": f"{project}.{priority.name}.{number}",
        "project": project,
        "queue": queue,
        "cost": cost,
        "window": window,
    }
    values["request"] = json.dumps(stored_request())
    await db.execute(_INSERT, {**values, "priority": priority.value, "count": count})
    return [f"{values['prefix']}-{each}" for each in range(1, count + 1)]


async def with_slots(db: Database, slots: int, worker: str = "w", queue: str = QUEUE) -> int:
    """A living worker with so many slots that are open to all, beside those that are kept for foreground responses.

    Returns how many it has in all.
    """
    every = slots + slots // (KEPT_PART - 1)
    await register(db, WorkerIdentity(worker, "scripted", queue, "host", 1, 4096, every, worker), 3600.0)
    return every


async def weigh(db: Database, project: str, weight: float) -> None:
    """Gives a project, which need not be there, its share."""
    statement = "INSERT INTO projects (id, name, created_at, weight) VALUES (:project, :project, now(), :weight) "
    changed = statement + "ON CONFLICT (id) DO UPDATE SET weight = excluded.weight"
    await db.execute(text(changed), {"project": project, "weight": weight})


async def sent(db: Database, ahead: Ahead = NOTHING_AHEAD, queue: str = QUEUE) -> list[str]:
    """Dispatches until nothing more is sent; returns the ids in order."""
    ids: list[str] = []
    while messages := await dispatch(db, queue, ahead):
        ids += [message.response_id for message in messages]
    return ids


async def take(db: Database, ids: Sequence[str], worker: str = "w") -> None:
    """What a claim does to the queue."""
    columns = "status = 'in_progress', attempt = attempt + 1, started_at = now(), yielded = false"
    owner = "worker = :worker, sent_to = :worker, sent_at = coalesce(sent_at, now())"
    claim = f"UPDATE responses SET {columns}, {owner} WHERE id = ANY(:ids)"
    await db.execute(text(claim), {"ids": list(ids), "worker": worker})


async def end(db: Database, ids: Sequence[str]) -> None:
    """What the end of a response does to the queue."""
    ended = "status = 'cancelled', worker = NULL, finished_at = now(), output = '[]'"
    await db.execute(text(f"UPDATE responses SET {ended} WHERE id = ANY(:ids)"), {"ids": list(ids)})


async def drain(db: Database, count: int, queue: str = QUEUE) -> list[str]:
    """Dispatches and ends what was sent until `count` were, or nothing is left; returns the ids in order."""
    ended: list[str] = []
    while len(ended) < count and (ids := await sent(db, queue=queue)):
        await end(db, ids)
        ended += ids
    return ended
