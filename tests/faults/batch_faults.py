"""Faults of batches, each in the moment in which a process works on one."""

from __future__ import annotations

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
from tests.faults.polling import with_pause
from tests.faults.store_faults import blocks_somebody
from tests.support.waiting import until

MOMENT_SECONDS = 10.0
"""How long a fault waits for its moment; there is none if no batch is under way."""
_LOCK = text(f"SELECT id FROM batches WHERE status IN ({UNFINISHED_BATCHES}) ORDER BY id FOR UPDATE")
_RUNNING = text(
    "SELECT w.pid FROM responses r JOIN workers w ON w.id = r.worker"
    " WHERE r.status = 'in_progress' AND r.batch_id IS NOT NULL GROUP BY w.pid ORDER BY count(*) DESC"
)


async def worker_killed_with_its_lines(arena: Arena) -> None:
    """Kills the worker that runs the most lines."""
    with suppress(StoreUnavailable, AssertionError):
        member = await until(with_pause(partial(_runs_lines, arena.fleet)), MOMENT_SECONDS)
        arena.target = member.name
        async with arena.lock(member.name):
            member.signal(signal.SIGKILL)


async def _runs_lines(fleet: Fleet) -> Member | None:
    pids = [row.pid for row in await fleet.db.execute(_RUNNING)]
    return next((member for pid in pids for member in fleet.of(Role.WORKER) if member.pid == pid), None)


async def maintenance_killed_in_a_step(arena: Arena) -> None:
    """Kills all of maintenance while one of its processes waits for a batch, in the middle of its transaction."""
    with suppress(StoreUnavailable, AssertionError):
        async with arena.fleet.db.begin() as connection:  # It ends after them.
            await until(partial(_holds_up_a_step, connection), MOMENT_SECONDS)
            for member in arena.fleet.of(Role.MAINTENANCE):
                member.signal(signal.SIGKILL)


async def _holds_up_a_step(connection: AsyncConnection) -> bool:
    await connection.execute(_LOCK)
    return await blocks_somebody(connection)
