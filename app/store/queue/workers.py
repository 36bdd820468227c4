"""The living workers: one row each, whose lease a heartbeat extends. A response's lease is its worker's.

A worker gives two signs of life. The lease shows that it works: it also detects partitions and hangs, but late. An
advisory lock, held by a connection of its own, shows that its process exists. However the process dies, the kernel
closes the socket, Postgres drops the lock, and the next look finds it missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import chain

from sqlalchemy import text

from app.store.columns import to_json
from app.store.database import Connection, Database
from app.store.guards import RELEASED, HandOver
from app.store.layout import LAYOUT

POSTGRES_SILENT_SECONDS = 5.0
"""Without an answer of Postgres for so long, workers may have lost their connections to it, too."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """A worker's process, and one lease of it: a lease that is lost ends the row, not the process."""

    id: str
    """The node, with the number of the lease behind it from the second one on. It owns what was claimed under it."""
    model: str
    queue: str
    host: str
    pid: int
    context_length: int
    """Tokens of prompt and output together, in its engine."""
    slots: int
    """How many responses it runs at once; 0: it takes none now."""
    node: str
    """The name of its process (app/queue/node.py), by which its messages find it."""
    format: str = "chat"
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    efforts: Mapping[str, str | None] | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    """What restarts the process: a systemd unit, a pod, or a process of `longhaul up`."""
    devices: str | None = None
    """The worker's devices, as CUDA_VISIBLE_DEVICES names them; None: all of the machine."""
    device: str | None = None
    """The name of its devices."""
    version: str = ""
    """Longhaul's version."""


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """The model's facts, as its living workers state them."""

    context_length: int
    """The shortest, if its workers differ."""
    format: str
    tool_parser: str | None
    reasoning_parser: str | None
    default_sampling: Mapping[str, float]
    efforts: Mapping[str, str | None] | None
    """What becomes of each `reasoning.effort`; None: not known."""
    refusals: Mapping[str, str]
    """The kinds of requests that the model refuses, and why."""


@dataclass(frozen=True, slots=True)
class Released:
    """A response that was taken from a dead worker."""

    id: str
    attempt: int
    node: str
    request_id: str | None


class LeaseLost(Exception):
    """The worker's row is gone: maintenance took it for dead, and other workers may claim what it ran."""


_REGISTER = text(
    """
    INSERT INTO workers (id, node, model, queue, host, pid, started_at, lease_until, layout, context_length, slots,
        format, tool_parser, reasoning_parser, default_sampling, efforts, refusals, unit, devices, device, version)
    VALUES (:id, :node, :model, :queue, :host, :pid, now(), now() + make_interval(secs => :lease), :layout,
        :context_length, :slots, :format, :tool_parser, :reasoning_parser, :default_sampling, :efforts, :refusals,
        :unit, :devices, :device, :version)
    ON CONFLICT DO NOTHING
    """
)


async def register(db: Database, worker: WorkerIdentity, lease_seconds: float) -> None:
    """Announces a worker whose engine is loaded and whose lock is held (`presence`)."""
    told = {name: to_json(getattr(worker, name)) for name in ("default_sampling", "efforts", "refusals")}
    values = {**asdict(worker), **told, "layout": LAYOUT, "lease": lease_seconds}
    await db.execute(_REGISTER, values)  # repeated after the connection broke, it conflicts


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The responses that a heartbeat found: response id -> attempt."""

    fenced: Mapping[str, int]
    """Responses that run here, but no longer belong to this worker under that attempt."""
    orphaned: Mapping[str, int]
    """Responses that belong to this worker, but do not run here."""
    is_drained: bool = False
    """Whether operators have drained this worker (drains.py)."""


_EXTEND = text(
    """
    UPDATE workers w SET lease_until = now() + make_interval(secs => :lease), slots = :slots, away = :away,
        foreground_away = :foreground_away
    WHERE w.id = :worker RETURNING EXISTS (SELECT FROM drains d WHERE d.node = w.node) AS is_drained
    """
)
# What a living worker claimed was sent to its node.
_OWNED = text(
    """
    SELECT r.id, r.attempt FROM responses r
    WHERE r.sent_to = (SELECT w.node FROM workers w WHERE w.id = :worker) AND r.sent_at IS NOT NULL
        AND r.finished_at IS NULL AND r.worker = :worker AND r.status = 'in_progress'
    """
)
_IS_ALIVE = text("SELECT id FROM workers WHERE id = :worker AND lease_until > now()")
_UNREGISTER = text("DELETE FROM workers WHERE id = :worker")


async def heartbeat(
    db: Database,
    worker: str,
    lease_seconds: float,
    running: Mapping[str, int],
    slots: int,
    away: tuple[int, int] = (0, 0),
) -> HeartbeatResult:
    """Extends the lease, and compares the worker's rows with what it says is `running` (response id -> attempt).

    The worker has so many `slots` now, and is sent as many responses beside those that are `away`: those without a
    foreground place, and those with one.

    Raises LeaseLost if the worker was taken for dead.
    """
    told = {"slots": slots, "away": away[0], "foreground_away": away[1]}
    async with db.autocommit() as connection:
        extended = await connection.execute(_EXTEND, {"worker": worker, "lease": lease_seconds, **told})
        if (row := extended.one_or_none()) is None:
            raise LeaseLost(worker)
        owned_here = {owned.id: owned.attempt for owned in await connection.execute(_OWNED, {"worker": worker})}
    return HeartbeatResult(
        fenced={name: attempt for name, attempt in running.items() if owned_here.get(name) != attempt},
        orphaned={name: attempt for name, attempt in owned_here.items() if running.get(name) != attempt},
        is_drained=row.is_drained,
    )


async def is_alive(db: Database, worker: str) -> bool:
    """Whether the worker is registered, and its lease has not run out: only then may it claim."""
    return bool(await db.execute(_IS_ALIVE, {"worker": worker}))


async def unregister(db: Database, worker: str) -> None:
    """Removes a worker that runs nothing any more."""
    await db.execute(_UNREGISTER, {"worker": worker})


# An operator may have set the time-outs for the role. transaction_timeout is one of PostgreSQL 17.
_BEGIN_PRESENCE = """
    BEGIN ISOLATION LEVEL READ COMMITTED;
    SELECT set_config(name, '0', true) FROM pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""


@asynccontextmanager
async def presence(db: Database, worker: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Holds the worker's advisory lock, in a transaction of its own, until the context is left.

    The lock is the transaction's, not the session's: PgBouncer in transaction mode lends a connection for as long as a
    transaction lasts. `check` leaves no portal open, so the transaction keeps no snapshot and delays no VACUUM.

    Yields `check`, which raises an error once the transaction is lost, and the lock with it.
    """
    async with db.pooled_driver_connection() as connection:
        await connection.execute(_BEGIN_PRESENCE)
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", worker)

        async def check() -> None:
            await connection.execute("SELECT 1")

        await check()
        yield check
        await connection.execute("COMMIT")


# A heartbeat renews a lease in its first half. SKIP LOCKED: copies of maintenance that lock rows in different orders
# would deadlock.
_UPDATE_ABSENCE = text(
    """
    WITH updated AS (
        UPDATE workers SET absent_since = CASE WHEN absent_since IS NULL THEN now() END WHERE id IN (
            SELECT w.id FROM workers w
            WHERE (w.absent_since IS NULL) = (w.lease_until < now() + make_interval(secs => :lease / 2)
                OR w.id NOT IN (SELECT p.id FROM present_workers p))
            FOR UPDATE SKIP LOCKED)
        RETURNING absent_since
    )
    SELECT
        pg_postmaster_start_time() AS server,
        EXISTS (SELECT FROM workers WHERE absent_since IS NOT NULL)
            OR EXISTS (SELECT FROM updated WHERE absent_since IS NOT NULL) AS some_absent
    """
)
# While Postgres was away no worker could renew its lease, and after a restart no worker holds its lock: all workers get
# `comeback` seconds to return, after each absence. While Postgres was frozen and nobody noticed, a lease that has run
# out does not count before maintenance has seen half of it pass. A time that is still to come is one from before the
# clock of Postgres went back; copies of maintenance differ by less than the second.
_DELETE_DEAD = text(
    """
    DELETE FROM workers WHERE id IN (
        SELECT w.id FROM workers w WHERE (
            w.lease_until < now()
            AND w.absent_since NOT BETWEEN now() - make_interval(secs => :lease / 2) AND now() + interval '1 second'
        ) OR (
            w.absent_since NOT BETWEEN now() - make_interval(secs => :absence) AND now() + interval '1 second'
            AND w.id NOT IN (SELECT p.id FROM present_workers p)
            AND pg_postmaster_start_time()
                NOT BETWEEN now() - make_interval(secs => :comeback) AND now() + interval '1 second')
        FOR UPDATE SKIP LOCKED)
    RETURNING id, lease_until - make_interval(secs => :lease) >= pg_postmaster_start_time() AS crashed
    """
)
_OWNERS_WITHOUT_ROW = text(
    """
    SELECT DISTINCT r.worker FROM responses r
    WHERE r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.worker IS NOT NULL
        AND NOT EXISTS (SELECT FROM workers w WHERE w.id = r.worker)
    """
)


class ServerWatch:
    """Notices that workers may have lost their locks while they lived: Postgres was silent, or another one answers.

    A standby started long before it was promoted, so the time of its start does not tell.
    """

    def __init__(self) -> None:
        self._server: datetime | None = None
        self._answered_at = math.inf
        self._moved_at = -math.inf

    def has_moved(self, server: datetime, seconds: float) -> bool:
        """Whether that was so within the last `seconds`. `server` is when the Postgres started that answers now."""
        now = time.monotonic()
        if self._server not in (None, server) or now > self._answered_at + POSTGRES_SILENT_SECONDS:
            self._moved_at = now
        self._server, self._answered_at = server, now
        return now < self._moved_at + seconds


async def release_dead_workers(
    db: Database,
    absence_seconds: float = 0.4,
    comeback_seconds: float = 10.0,
    watch: ServerWatch | None = None,
    lease_seconds: float = 30.0,
    tell: Callable[[Released], None] = lambda _: None,
) -> list[str]:
    """Removes dead workers and releases their responses, in one transaction; returns the workers' ids.

    A worker is dead if its lease ran out and half a lease passed between two looks that found no heartbeat, or if its
    lock has been missing at two looks, at least `absence_seconds` apart. Within `comeback_seconds` after this server
    took over or answered again, no worker is dead; within that time after its start, no missing lock counts.

    A death counts as a crash of what the worker ran, unless it sent no heartbeat since this server started: then it
    has stopped with the server, as all do when a machine shuts down, and may have had no Postgres to release its
    responses in. Nor does it count if a worker left responses behind when it unregistered.

    `tell` is called with each response that was released.
    """
    watch = watch or ServerWatch()
    async with db.autocommit() as connection:
        look = (await connection.execute(_UPDATE_ABSENCE, {"lease": lease_seconds})).one()
        left = list((await connection.execute(_OWNERS_WITHOUT_ROW)).scalars())
    moved = watch.has_moved(look.server, comeback_seconds)
    if not (look.some_absent or left):
        return []
    values = {"absence": absence_seconds, "comeback": comeback_seconds, "lease": lease_seconds}
    async with db.begin() as connection:
        dead = dict.fromkeys(left, False)
        if not moved:
            dead |= {row.id: row.crashed for row in await connection.execute(_DELETE_DEAD, values)}
        # In one order: another copy may release what a worker has left, too.
        released = [await release_all(connection, worker, crashed=dead[worker]) for worker in sorted(dead)]
    for each in chain.from_iterable(released):
        tell(each)
    return list(dead)


# It locks rows in the order in which the worker's journal does: the worker may be alive, in the middle of a batch.
_RELEASE_ALL = text(
    f"""
    UPDATE responses r SET {RELEASED},
        crashes = CASE WHEN NOT :crashed THEN r.crashes
            WHEN r.attempt = (SELECT p.attempt FROM progress p WHERE p.response_id = r.id) THEN 0
            ELSE r.crashes + 1 END
    WHERE r.id IN (
        SELECT o.id FROM responses o
        WHERE o.sent_at IS NOT NULL AND o.finished_at IS NULL AND o.worker = :worker AND o.status = 'in_progress'
        ORDER BY o.id FOR UPDATE)
    RETURNING r.id, r.attempt, r.sent_to, r.request_id
    """
)


async def release_all(connection: Connection, worker: str, *, crashed: bool) -> Sequence[Released]:
    """Releases every response of a worker that is dead.

    `crashed`: it counts against those that made no progress, and the others are forgiven earlier ones.
    """
    how = HandOver.CRASHED if crashed else HandOver.STOPPED
    released = await connection.execute(_RELEASE_ALL, {"worker": worker, "crashed": crashed, "how": how.value})
    return [Released(*row) for row in released]


_REGISTERED = text(
    """
    SELECT w.model, min(w.context_length) OVER (PARTITION BY w.model) AS context_length, w.format, w.tool_parser,
        w.reasoning_parser, w.default_sampling, w.efforts, w.refusals
    FROM workers w WHERE w.lease_until > now() ORDER BY w.started_at
    """
)
_QUEUES = text("SELECT DISTINCT model, queue FROM workers")
_ANY = text(
    """
    SELECT w.node FROM open_workers w WHERE w.queue = :queue AND w.lease_until > now()
    ORDER BY w.version = :version DESC, random() LIMIT 1
    """
)
_READY = text("SELECT DISTINCT model FROM workers WHERE lease_until > now() AND layout >= :layout")


async def registered_models(db: Database) -> dict[str, RegisteredModel]:
    """The models with a living worker. If its workers differ, the one that started last knows its files best."""
    return {  # later rows replace earlier ones
        row.model: RegisteredModel(**{name: row._mapping[name] for name in RegisteredModel.__slots__})
        for row in await db.execute(_REGISTERED)
    }


async def queues(connection: Connection) -> dict[str, str]:
    """The queues of the models that have workers, by the models' names."""
    return {row.model: row.queue for row in await connection.execute(_QUEUES)}


async def any_node(db: Database, queue: str, version: str) -> str | None:
    """The node of any living worker of the queue that takes work, one of this version rather; None: there is none."""
    return next((row.node for row in await db.execute(_ANY, {"queue": queue, "version": version})), None)


async def ready_models(db: Database) -> set[str]:
    """The models that a living worker with a loaded engine serves.

    Older workers do not count: they leave what this version accepts to newer ones.
    """
    return {row.model for row in await db.execute(_READY, {"layout": LAYOUT})}
