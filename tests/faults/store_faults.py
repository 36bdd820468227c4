"""Faults within Postgres while it runs: statements that it ends, and a full disk."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from sqlalchemy import text

from app.store.database import StoreUnavailable, retry_until_available
from tests.faults import full_disk
from tests.faults.arena import Arena
from tests.faults.fleet import SUITE
from tests.faults.plan import LEASE_SECONDS

PAUSE_SECONDS = 0.01
_OTHERS = f"backend_type = 'client backend' AND application_name <> '{SUITE}'"
_NOT_REPLICATING = "wait_event IS DISTINCT FROM 'SyncRep'"
"""A session that waits for the standby has committed already: if it is ended, a failover may take the commit back."""

# -- statements that Postgres ends -----------------------------------------------------------------------------


async def sessions_terminated(arena: Arena) -> None:
    async with arena.lock("postgres"):
        await _signal_some(arena, "pg_terminate_backend", "")


async def queries_cancelled(arena: Arena) -> None:
    """Cancels a share of all queries, whoever sends them, for a while."""
    end = time.monotonic() + arena.seconds(0.2, 2)
    while time.monotonic() < end:
        await _signal_some(arena, "pg_cancel_backend", "AND state = 'active'")
        await asyncio.sleep(PAUSE_SECONDS)


async def _signal_some(arena: Arena, function: str, condition: str) -> None:
    statement = text(
        f"SELECT {function}(pid) FROM pg_stat_activity"
        f" WHERE {_OTHERS} AND {_NOT_REPLICATING} AND random() < :share {condition}"
    )
    with suppress(StoreUnavailable):
        await arena.fleet.db.execute(statement, {"share": arena.seconds(0.1, 1)})


async def statements_time_out(arena: Arena) -> None:
    """All sessions get time limits that some of their statements exceed, for a while."""
    limits = {"statement_timeout": arena.random.randint(2, 40), "lock_timeout": arena.random.randint(1, 10)}
    seconds = arena.seconds(0.5, 3)

    async def set_to(values: dict[str, int]) -> None:
        """Limits are read when a session starts, so all sessions are ended."""
        for name, milliseconds in values.items():
            await arena.fleet.db.execute(text(f"ALTER ROLE CURRENT_USER SET {name} = {milliseconds}"))
        await arena.fleet.db.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}"))

    async with arena.lock("postgres"):
        try:
            with suppress(StoreUnavailable):
                await set_to(limits)
                await asyncio.sleep(seconds)
        finally:
            await retry_until_available(lambda: set_to(dict.fromkeys(limits, 0)))


async def disk_full(arena: Arena) -> None:
    with suppress(StoreUnavailable):
        async with full_disk.filled(arena.fleet.db):
            await asyncio.sleep(arena.seconds(0.3, LEASE_SECONDS + 1))
