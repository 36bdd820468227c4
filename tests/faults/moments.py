"""Faults in the one moment in which something is committed and not yet sent, or locked.

A fault waits for its moment for a while. If there is none, most of them strike without it.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from functools import partial

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import StoreUnavailable
from app.store.tables import UNFINISHED_BATCHES
from tests.faults.arena import Arena
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.plan import LEASE_SECONDS
from tests.faults.polling import with_pause
from tests.faults.process_faults import all_killed
from tests.support.waiting import until

MOMENT_SECONDS = 2 * LEASE_SECONDS
BATCH_SECONDS = 10.0
"""The same of a batch: there is no moment if none is under way."""
PAUSE_SECONDS = 0.01
PILE_UP_SECONDS = 0.3
BLOCKED = "FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
"""The sessions that wait for a transaction of this session. Unlike pg_stat_activity, it is read anew each time."""
_LINES = text(
    "SELECT w.pid FROM responses r JOIN workers w ON w.id = r.worker"
    " WHERE r.status = 'in_progress' AND r.batch_id IS NOT NULL GROUP BY w.pid ORDER BY count(*) DESC"
)


async def blocks_somebody(connection: AsyncConnection) -> bool:
    await asyncio.sleep(PAUSE_SECONDS)
    return bool((await connection.execute(text(f"SELECT count(*) {BLOCKED}"))).scalar_one())


async def apis_killed_before_they_send(arena: Arena) -> None:
    """Kills all API processes while Redis answers nothing, after one of them has inserted a response."""
    inserted = text("SELECT coalesce(max(id), 0) AS last FROM fault_audit WHERE what = 'INSERT'")

    async def last() -> int:
        (row,) = await arena.fleet.db.execute(inserted)
        return int(row.last)

    async with arena.lock("valkey"):
        with arena.fleet.services.valkey.frozen():
            with suppress(StoreUnavailable, AssertionError):
                before = await last()

                async def has_more() -> bool:
                    return await last() > before

                await until(has_more, MOMENT_SECONDS)
            await all_killed(Role.API)(arena)


async def worker_killed_before_its_dispatch(arena: Arena) -> None:
    """Kills a worker while dispatches wait: it has claimed, and what follows was not sent."""
    member = arena.pick(Role.WORKER)
    async with arena.lock(member.name):
        with suppress(StoreUnavailable, AssertionError):
            async with arena.fleet.db.begin() as connection:  # it ends after the worker
                try:
                    await connection.execute(text("SELECT name FROM queues ORDER BY name FOR UPDATE"))
                    await until(partial(blocks_somebody, connection), MOMENT_SECONDS)
                    await asyncio.sleep(PILE_UP_SECONDS)
                finally:
                    member.signal(signal.SIGKILL)


async def worker_killed_with_its_lines(arena: Arena) -> None:
    """Kills the worker that runs the most lines of batches."""

    async def runs_lines() -> Member | None:
        pids = [row.pid for row in await arena.fleet.db.execute(_LINES)]
        return next((each for pid in pids for each in arena.fleet.of(Role.WORKER) if each.pid == pid), None)

    with suppress(StoreUnavailable, AssertionError):
        member = await until(with_pause(runs_lines), BATCH_SECONDS)
        assert member is not None
        arena.target = member.name
        async with arena.lock(member.name):
            member.signal(signal.SIGKILL)


async def maintenance_killed_in_a_step(arena: Arena) -> None:
    """Kills all of maintenance while one of its processes waits for a batch, in the middle of its transaction."""
    lock = text(f"SELECT id FROM batches WHERE status IN ({UNFINISHED_BATCHES}) ORDER BY id FOR UPDATE")
    with suppress(StoreUnavailable, AssertionError):
        async with arena.fleet.db.begin() as connection:  # it ends after them

            async def holds_up_a_step() -> bool:
                await connection.execute(lock)
                return await blocks_somebody(connection)

            await until(holds_up_a_step, BATCH_SECONDS)
            await all_killed(Role.MAINTENANCE)(arena)


async def heartbeats_cancelled(arena: Arena) -> None:
    """Cancels the next heartbeats of one worker, sometimes for longer than its lease."""
    member, times = arena.pick(Role.WORKER), arena.random.randint(1, 12)
    async with arena.lock(f"{member.name} lease"):
        with suppress(StoreUnavailable):
            await cancel_heartbeats(arena.fleet, member, times)


async def cancel_heartbeats(fleet: Fleet, member: Member, times: int) -> int:
    """Returns how many it could cancel."""
    lock = text("SELECT id FROM workers WHERE id = :id FOR NO KEY UPDATE")  # claims pass, heartbeats wait
    cancel = text(f"SELECT count(pg_cancel_backend(pid)) {BLOCKED}")
    worker, cancelled = (await fleet.ready_workers()).get(member.pid or 0), 0
    async with fleet.db.begin() as connection:

        async def cancelled_some() -> int:
            await asyncio.sleep(PAUSE_SECONDS)
            return int((await connection.execute(cancel)).scalar_one())

        if (await connection.execute(lock, {"id": worker})).first() is not None:
            with suppress(AssertionError):
                while cancelled < times:
                    cancelled += await until(cancelled_some, MOMENT_SECONDS)
    return cancelled


async def deadlock(arena: Arena) -> None:
    """Locks the responses of one worker from the last id to the first; a batch of its commits locks them the other way.

    The savepoint gives all rows but the last free again, after commits of all of them have piled up.
    """
    if (found := await arena.fleet.busiest()) is None:
        return
    arena.target = found[0].name
    last, *others = sorted(found[1], reverse=True)
    lock = text("SELECT id FROM responses WHERE id = ANY(:ids) ORDER BY id DESC FOR UPDATE")
    with suppress(StoreUnavailable, AssertionError):  # Postgres ends this transaction, or nobody waits for it
        async with arena.fleet.db.begin() as connection:
            waits = partial(blocks_somebody, connection)
            await connection.execute(lock, {"ids": [last]})
            async with connection.begin_nested() as savepoint:
                await connection.execute(lock, {"ids": others})
                await until(waits, MOMENT_SECONDS)
                await asyncio.sleep(PILE_UP_SECONDS)
                await savepoint.rollback()
            await until(waits, MOMENT_SECONDS)
            await connection.execute(lock, {"ids": others})
