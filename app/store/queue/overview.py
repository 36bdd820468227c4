"""All that one look at the whole deployment reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from app.scheduling.decisions import QueueState
from app.store.database import Database
from app.store.queue import fleet, pace, signs, worker_rows
from app.store.queue.facts import states
from app.store.queue.fleet import FleetFacts
from app.store.queue.pace import Pace
from app.store.queue.signs import Signs
from app.store.queue.worker_rows import WorkerRow


@dataclass(frozen=True, slots=True)
class Overview:
    fleet: FleetFacts
    workers: Sequence[WorkerRow]
    paces: Sequence[Pace]
    states: Mapping[str, QueueState]
    """Of all queues that have workers or work."""
    signs: Signs


async def read(db: Database, retention_seconds: float, queues: Collection[str]) -> Overview:
    """`queues` are looked at even if they have nothing. Raises StoreUnavailable."""
    found = await fleet.read(db, retention_seconds)
    async with db.begin() as connection:
        workers = await worker_rows.read_workers(connection)
        known = {*queues, *(w.queue for w in workers), *(f.queue for f in found.flows), *(b.queue for b in found.begun)}
        return Overview(
            fleet=found,
            workers=workers,
            paces=await pace.read(connection),
            states=await states(connection, known) if known else {},
            signs=await signs.read(connection, found.overdue_seconds),
        )
