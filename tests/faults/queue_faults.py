"""Faults of the fair queue, each in the moment in which something is committed and not yet sent to Redis."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from sqlalchemy import text

from app.store.database import StoreUnavailable
from tests.faults.arena import Arena
from tests.faults.fleet import Fleet
from tests.faults.member import Role
from tests.faults.plan import LEASE_SECONDS
from tests.faults.store_faults import PILE_UP_SECONDS, blocks_somebody
from tests.support.waiting import until

MOMENT_SECONDS = 2 * LEASE_SECONDS
"""How long a fault waits for its moment; the fault comes without it then."""


async def worker_killed_before_its_dispatch(arena: Arena) -> None:
    """Kills a worker while dispatches wait: it has claimed, and what follows was not sent."""
    member = arena.pick(Role.WORKER)
    async with arena.lock(member.name):
        with suppress(StoreUnavailable, AssertionError):  # The transaction ends after the worker.
            async with arena.fleet.db.begin() as connection:
                try:
                    await connection.execute(text("SELECT name FROM queues ORDER BY name FOR UPDATE"))
                    await until(lambda: blocks_somebody(connection), MOMENT_SECONDS)
                    await asyncio.sleep(PILE_UP_SECONDS)
                finally:
                    member.signal(signal.SIGKILL)


async def apis_killed_before_they_send(arena: Arena) -> None:
    """Kills all API processes while Redis answers nothing, after one of them has inserted a response."""
    async with arena.lock("valkey"):
        with arena.fleet.services.valkey.frozen():
            with suppress(StoreUnavailable, AssertionError):
                before = await _inserted(arena.fleet)
                await until(lambda: _has_more(arena.fleet, before), MOMENT_SECONDS)
            for member in arena.fleet.of(Role.API):
                member.signal(signal.SIGKILL)


async def flushed_without_maintenance(arena: Arena) -> None:
    """Empties Redis while all of maintenance is stopped: only workers dispatch, until nobody has anything to claim."""
    seconds, fleet = arena.seconds(0.5, 4), arena.fleet
    pids = [pid for member in fleet.of(Role.MAINTENANCE) if (pid := member.signal(signal.SIGSTOP)) is not None]
    try:
        async with arena.lock("valkey"), fleet.valkey as client:
            await client.flushall()
        await asyncio.sleep(seconds)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def _inserted(fleet: Fleet) -> int:
    async with fleet.db.autocommit() as connection:
        statement = text("SELECT coalesce(max(id), 0) FROM fault_audit WHERE what = 'INSERT'")
        return int((await connection.execute(statement)).scalar_one())


async def _has_more(fleet: Fleet, before: int) -> bool:
    return await _inserted(fleet) > before
