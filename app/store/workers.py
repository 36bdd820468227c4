"""The workers that live: one row each, kept alive by a heartbeat. A response's lease is its worker's.

Two signs of life. The lease says that the worker still works: it tells of partitions and hangs, late. A session
advisory lock, on a connection of its own, says that its process exists: when that dies, however it dies, the
kernel closes the socket, Postgres drops the lock, and the next look finds it missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import SQLAlchemyError

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
    """Announces a worker whose engine is loaded, and which is present."""
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


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """What a heartbeat found: response id -> attempt."""

    lost: Mapping[str, int]
    """What runs here, and is this worker's no more."""
    orphaned: Mapping[str, int]
    """What is this worker's, and does not run here."""


async def heartbeat(db: Database, worker: str, lease_seconds: float, running: Mapping[str, int]) -> HeartbeatResult:
    """Prolongs the lease, and compares what is this worker's with what it says is `running` (id -> attempt).

    Raises LeaseLost where the worker was taken for dead.
    """
    prolonged = update(workers).where(workers.c.id == worker).values(lease_until=_lease(lease_seconds))
    owned = select(responses.c.id, responses.c.attempt).where(
        responses.c.worker == worker, responses.c.status == Status.IN_PROGRESS.value
    )
    async with db.autocommit() as connection:
        if (await connection.execute(prolonged)).rowcount == 0:
            raise LeaseLost(worker)
        mine = {row.id: row.attempt for row in await connection.execute(owned)}
    return HeartbeatResult(
        lost={name: attempt for name, attempt in running.items() if mine.get(name) != attempt},
        orphaned={name: attempt for name, attempt in mine.items() if running.get(name) != attempt},
    )


async def unregister(db: Database, worker: str) -> None:
    """Says goodbye: the worker runs nothing any more."""
    async with db.autocommit() as connection:
        await connection.execute(delete(workers).where(workers.c.id == worker))


@asynccontextmanager
async def presence(db: Database, worker: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Holds the worker's advisory lock, on a connection of its own, until the context is left.

    Gives a function that raises StoreUnavailable once that connection is lost, and the lock with it.
    """
    async with db.autocommit() as connection:
        await connection.execute(text("SELECT pg_advisory_lock(hashtextextended(:id, 0))"), {"id": worker})

        async def check() -> None:
            await connection.execute(text("SELECT 1"))

        try:
            yield check
        finally:
            # The connection goes back to the pool: without this the lock would go with it.
            with suppress(SQLAlchemyError):
                await connection.execute(text("SELECT pg_advisory_unlock(hashtextextended(:id, 0))"), {"id": worker})


# pg_locks shows a lock's 64-bit key as two unsigned halves.
_PRESENT = """
    EXISTS (
        SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended(w.id, 0))
"""
# SKIP LOCKED: copies of maintenance that took rows in different orders would wait for each other.
_NOTE_ABSENCE = text(
    f"""
    UPDATE workers SET absent_since = CASE WHEN absent_since IS NULL THEN now() END WHERE id IN (
        SELECT w.id FROM workers w WHERE (w.absent_since IS NULL) <> {_PRESENT} FOR UPDATE SKIP LOCKED)
    """
)
# After a restart of Postgres nobody holds a lock for a moment: everybody has time to come back.
_BURY = text(
    f"""
    DELETE FROM workers WHERE id IN (
        SELECT w.id FROM workers w WHERE w.lease_until < now() OR (
            w.absent_since <= now() - make_interval(secs => :absence) AND NOT {_PRESENT}
            AND pg_postmaster_start_time() < now() - make_interval(secs => :comeback))
        FOR UPDATE SKIP LOCKED)
    """
)


async def take_dead(db: Database, absence_seconds: float = 0.4, comeback_seconds: float = 10.0) -> Sequence[str]:
    """Removes the workers that are dead, and returns every id that owns responses and lives no more.

    Dead: the lease ran out, or the lock was missing `absence_seconds` ago and is missing now.
    An id comes again until `responses.disown` has taken everything from it: a maintenance process
    that dies between the two loses nothing.
    """
    async with db.autocommit() as connection:
        await connection.execute(_NOTE_ABSENCE)
        await connection.execute(_BURY, {"absence": absence_seconds, "comeback": comeback_seconds})
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
