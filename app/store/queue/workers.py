"""The living workers: one row each, whose lease a heartbeat extends. A response's lease is its worker's.

A worker gives two signs of life. The lease shows that it works: it also detects partitions and hangs, but late. An
advisory lock, held by a connection of its own, shows that its process exists. However the process dies, the kernel
closes the socket, Postgres drops the lock, and the next look finds it missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from app.protocol.status import Status
from app.store.database import Database
from app.store.formats import FORMAT
from app.store.tables import responses, workers
from app.store.trouble import Trouble, trouble_of


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """One life of one worker process; a restarted process is another worker."""

    id: str
    model: str
    queue: str
    host: str
    pid: int
    context_length: int
    """Tokens of prompt and output together, in its engine."""
    slots: int
    """The most responses that it runs at once."""


class LeaseLost(Exception):
    """The worker's row is gone: maintenance took it for dead, and other workers may claim what it ran."""


def _lease(seconds: float) -> object:
    return func.now() + timedelta(seconds=seconds)


async def register(db: Database, worker: WorkerIdentity, lease_seconds: float) -> None:
    """Announces a worker whose engine is loaded and whose lock is held (`presence`)."""
    async with db.autocommit() as connection:
        await connection.execute(
            insert(workers)
            .values(
                id=worker.id,
                model=worker.model,
                queue=worker.queue,
                host=worker.host,
                pid=worker.pid,
                context_length=worker.context_length,
                slots=worker.slots,
                format=FORMAT,
                started_at=func.now(),
                lease_until=_lease(lease_seconds),
            )
            .on_conflict_do_nothing()  # repeated after the connection broke
        )


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """What a heartbeat found: response id -> attempt."""

    fenced: Mapping[str, int]
    """Responses that run here, but no longer belong to this worker under that attempt."""
    orphaned: Mapping[str, int]
    """Responses that belong to this worker, but do not run here."""


async def heartbeat(db: Database, worker: str, lease_seconds: float, running: Mapping[str, int]) -> HeartbeatResult:
    """Extends the lease, and compares the worker's rows with what it says is `running` (response id -> attempt).

    Raises LeaseLost if the worker was taken for dead.
    """
    extend = update(workers).where(workers.c.id == worker).values(lease_until=_lease(lease_seconds))
    owned = select(responses.c.id, responses.c.attempt).where(
        responses.c.worker == worker, responses.c.status == Status.IN_PROGRESS.value
    )
    async with db.autocommit() as connection:
        if (await connection.execute(extend)).rowcount == 0:
            raise LeaseLost(worker)
        owned_here = {row.id: row.attempt for row in await connection.execute(owned)}
    return HeartbeatResult(
        fenced={name: attempt for name, attempt in running.items() if owned_here.get(name) != attempt},
        orphaned={name: attempt for name, attempt in owned_here.items() if running.get(name) != attempt},
    )


async def is_alive(db: Database, worker: str) -> bool:
    """Whether the worker is registered, and its lease has not run out: only then may it claim."""
    living = select(workers.c.id).where(workers.c.id == worker, workers.c.lease_until > func.now())
    async with db.autocommit() as connection:
        return (await connection.execute(living)).first() is not None


async def unregister(db: Database, worker: str) -> None:
    """Removes a worker that runs nothing any more."""
    async with db.autocommit() as connection:
        await connection.execute(delete(workers).where(workers.c.id == worker))


@asynccontextmanager
async def presence(db: Database, worker: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Holds the worker's advisory lock, on a connection of its own, until the context is left.

    Yields a function that raises StoreUnavailable once that connection is lost, and the lock with it.
    """
    async with db.autocommit() as connection:
        await connection.execute(text("SELECT pg_advisory_lock(hashtextextended(:id, 0))"), {"id": worker})

        async def check() -> None:
            try:
                await connection.execute(text("SELECT 1"))
            except DBAPIError as error:
                if trouble_of(error) is not Trouble.BUSY:  # cancelled: connection and lock are still there
                    raise

        try:
            yield check
        finally:
            # The connection goes back to the pool, so it must not keep the lock.
            with suppress(SQLAlchemyError):
                await connection.execute(text("SELECT pg_advisory_unlock(hashtextextended(:id, 0))"), {"id": worker})


# pg_locks shows a lock's 64-bit key as two unsigned halves.
_PRESENT = """
    EXISTS (
        SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended(w.id, 0))
"""
# SKIP LOCKED: copies of maintenance that lock rows in different orders would deadlock.
_UPDATE_ABSENCE = text(
    f"""
    WITH updated AS (
        UPDATE workers SET absent_since = CASE WHEN absent_since IS NULL THEN now() END WHERE id IN (
            SELECT w.id FROM workers w WHERE (w.absent_since IS NULL) <> {_PRESENT} FOR UPDATE SKIP LOCKED)
    )
    SELECT pg_postmaster_start_time()
    """
)
# After a restart of Postgres no worker holds its lock for a moment, so all get `comeback` seconds to reconnect. A time
# that is still to come is one from before the clock of Postgres went back; copies of maintenance differ by less than
# the second.
_DELETE_DEAD = text(
    f"""
    DELETE FROM workers WHERE id IN (
        SELECT w.id FROM workers w WHERE w.lease_until < now() OR (
            w.absent_since NOT BETWEEN now() - make_interval(secs => :absence) AND now() + interval '1 second'
            AND NOT {_PRESENT} AND NOT :moved
            AND pg_postmaster_start_time()
                NOT BETWEEN now() - make_interval(secs => :comeback) AND now() + interval '1 second')
        FOR UPDATE SKIP LOCKED)
    """
)


class ServerWatch:
    """Notices that another Postgres answers than before: a failover, after which no worker holds its lock for a moment.

    A standby started long before it was promoted, so the time of its start does not tell.
    """

    def __init__(self) -> None:
        self._server: datetime | None = None
        self._moved_at = -math.inf

    def has_moved(self, server: datetime, seconds: float) -> bool:
        """Whether another server took over within the last `seconds`. `server` is when this one started."""
        if self._server not in (None, server):
            self._moved_at = time.monotonic()
        self._server = server
        return time.monotonic() < self._moved_at + seconds


async def remove_dead_workers(
    db: Database, absence_seconds: float = 0.4, comeback_seconds: float = 10.0, watch: ServerWatch | None = None
) -> Sequence[str]:
    """Removes dead workers; returns the ids of all workers that own responses and have no row.

    A worker is dead if its lease ran out, or if its lock has been missing at two looks, at least `absence_seconds`
    apart, and this server did not start, or take over, within the last `comeback_seconds`. An id is returned until
    `claims.release_all` has released its responses: maintenance may die between them.
    """
    watch = watch or ServerWatch()
    async with db.autocommit() as connection:
        moved = watch.has_moved((await connection.execute(_UPDATE_ABSENCE)).scalar_one(), comeback_seconds)
        values = {"absence": absence_seconds, "comeback": comeback_seconds, "moved": moved}
        await connection.execute(_DELETE_DEAD, values)
        owners = (
            select(responses.c.worker)
            .where(responses.c.worker.is_not(None))
            .where(~select(workers.c.id).where(workers.c.id == responses.c.worker).exists())
            .distinct()
        )
        return [owner for owner in (await connection.execute(owners)).scalars() if owner is not None]


async def context_lengths(db: Database) -> dict[str, int]:
    """The context length of each model with a living worker: the shortest, if its workers differ."""
    lengths = (
        select(workers.c.model, func.min(workers.c.context_length).label("shortest"))
        .where(workers.c.lease_until > func.now())
        .group_by(workers.c.model)
    )
    async with db.autocommit() as connection:
        return {row.model: row.shortest for row in await connection.execute(lengths)}


async def ready_models(db: Database) -> set[str]:
    """The models that a living worker with a loaded engine serves.

    Older workers do not count: they leave what this version accepts to newer ones.
    """
    can_claim = (workers.c.lease_until > func.now()) & (workers.c.format >= FORMAT)
    async with db.autocommit() as connection:
        rows = await connection.execute(select(workers.c.model).where(can_claim).distinct())
        return set(rows.scalars())
