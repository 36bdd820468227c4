"""The workers that live: one row each, kept alive by a heartbeat. A response's lease is its worker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, insert, select, tuple_, update

from app.protocol.status import Status
from app.store.database import Database
from app.store.tables import responses, workers


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """One life of one worker process; a restarted process is another worker."""

    id: str
    model: str
    queue: str
    host: str
    pid: int


class LeaseLost(Exception):
    """The worker's row is gone: it was taken for dead, and everything it ran belongs to others."""


def _lease(seconds: float) -> object:
    return func.now() + timedelta(seconds=seconds)


async def register(db: Database, worker: WorkerIdentity, lease_seconds: float) -> None:
    """Announces a worker whose engine is loaded."""
    async with db.autocommit() as connection:
        await connection.execute(
            insert(workers).values(
                id=worker.id,
                model=worker.model,
                queue=worker.queue,
                host=worker.host,
                pid=worker.pid,
                started_at=func.now(),
                lease_until=_lease(lease_seconds),
            )
        )


async def heartbeat(db: Database, worker: str, lease_seconds: float, running: Mapping[str, int]) -> Sequence[str]:
    """Prolongs the lease; returns which of `running` (response id -> attempt) are this worker's no more.

    Raises LeaseLost where the worker was taken for dead.
    """
    prolonged = update(workers).where(workers.c.id == worker).values(lease_until=_lease(lease_seconds))
    async with db.autocommit() as connection:
        if (await connection.execute(prolonged)).rowcount == 0:
            raise LeaseLost(worker)
        if not running:
            return ()
        mine = select(responses.c.id).where(
            responses.c.worker == worker,
            responses.c.status == Status.IN_PROGRESS.value,
            tuple_(responses.c.id, responses.c.attempt).in_(list(running.items())),
        )
        still = set((await connection.execute(mine)).scalars())
    return [response_id for response_id in running if response_id not in still]


async def unregister(db: Database, worker: str) -> None:
    """Says goodbye: the worker runs nothing any more."""
    async with db.autocommit() as connection:
        await connection.execute(delete(workers).where(workers.c.id == worker))


async def take_dead(db: Database) -> Sequence[str]:
    """Removes the workers whose lease ran out, and returns every id that owns responses and lives no more.

    An id comes again until `responses.disown` has taken everything from it: a maintenance process
    that dies between the two loses nothing.
    """
    async with db.autocommit() as connection:
        await connection.execute(delete(workers).where(workers.c.lease_until < func.now()))
        owners = (
            select(responses.c.worker)
            .where(responses.c.worker.is_not(None))
            .where(~select(workers.c.id).where(workers.c.id == responses.c.worker).exists())
            .distinct()
        )
        return [owner for owner in (await connection.execute(owners)).scalars() if owner is not None]


async def ready_models(db: Database) -> set[str]:
    """The models that a live worker with a loaded engine serves."""
    async with db.autocommit() as connection:
        rows = await connection.execute(select(workers.c.model).where(workers.c.lease_until > func.now()).distinct())
        return set(rows.scalars())
