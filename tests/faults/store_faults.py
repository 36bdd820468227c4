"""Faults within Postgres while it runs: statements that it ends, a full disk, and rows that nobody can read."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import StoreUnavailable, retry_until_available
from tests.faults import full_disk
from tests.faults.arena import Arena, Inflict
from tests.faults.fleet import SUITE, Fleet
from tests.faults.member import Member, Role
from tests.faults.plan import LEASE_SECONDS
from tests.faults.service_faults import NOT_REPLICATING, kill_postgres, started
from tests.support.waiting import until

PAUSE_SECONDS = 0.01
BLOCKED_SECONDS = 2 * LEASE_SECONDS
"""How long a fault waits until a statement of the product waits for it."""
PILE_UP_SECONDS = 0.3
_OTHERS = f"backend_type = 'client backend' AND application_name <> '{SUITE}'"
_BLOCKED = "FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
"""The sessions that wait for a transaction of this session. Unlike pg_stat_activity, it is read anew each time."""

# -- statements that Postgres ends ---------------------------------------------------------------------------


async def queries_cancelled(arena: Arena) -> None:
    """Cancels a share of all queries, whoever sends them, for a while."""
    end, share = time.monotonic() + arena.seconds(0.2, 2), arena.seconds(0.1, 1)
    statement = text(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
        f" WHERE {_OTHERS} AND {NOT_REPLICATING} AND state = 'active' AND random() < :share"
    )
    with suppress(StoreUnavailable):
        while time.monotonic() < end:
            async with arena.fleet.db.autocommit() as connection:
                await connection.execute(statement, {"share": share})
            await asyncio.sleep(PAUSE_SECONDS)


async def heartbeats_cancelled(arena: Arena) -> None:
    """Cancels heartbeats of one worker, sometimes for longer than its lease."""
    member, times = arena.pick(Role.WORKER), arena.random.randint(1, 12)
    async with arena.lock(f"{member.name} lease"):
        with suppress(StoreUnavailable):
            await cancel_heartbeats(arena.fleet, member, times)


async def cancel_heartbeats(fleet: Fleet, member: Member, times: int) -> int:
    """Cancels the next heartbeats of a worker; returns how many it could."""
    lock = text("SELECT id FROM workers WHERE id = :id FOR NO KEY UPDATE")  # claims pass, heartbeats wait
    worker, cancelled = (await fleet.ready_workers()).get(member.pid or 0), 0
    async with fleet.db.begin() as connection:
        if (await connection.execute(lock, {"id": worker})).first() is not None:
            with suppress(AssertionError):
                while cancelled < times:
                    cancelled += await until(partial(_cancel_blocked, connection), BLOCKED_SECONDS)
    return cancelled


async def _cancel_blocked(connection: AsyncConnection) -> int:
    """Cancels the statements that wait for this connection's transaction; returns how many there were."""
    await asyncio.sleep(PAUSE_SECONDS)
    return int((await connection.execute(text(f"SELECT count(pg_cancel_backend(pid)) {_BLOCKED}"))).scalar_one())


async def statements_time_out(arena: Arena) -> None:
    """All sessions get time limits that some of their statements exceed, for a while."""
    limits = {"statement_timeout": arena.random.randint(2, 40), "lock_timeout": arena.random.randint(1, 10)}
    seconds = arena.seconds(0.5, 3)
    async with arena.lock("postgres"):
        try:
            with suppress(StoreUnavailable):
                await _set_limits(arena.fleet, limits)
                await asyncio.sleep(seconds)
        finally:
            await retry_until_available(lambda: _set_limits(arena.fleet, dict.fromkeys(limits, 0)))


async def _set_limits(fleet: Fleet, limits: dict[str, int]) -> None:
    """Limits are read when a session starts, so all sessions are ended."""
    async with fleet.db.autocommit() as connection:
        for name, milliseconds in limits.items():
            await connection.execute(text(f"ALTER ROLE CURRENT_USER SET {name} = {milliseconds}"))
        await connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}"))


async def deadlock(arena: Arena) -> None:
    """Locks the responses of one worker from the last id to the first; a batch of its commits locks them the other way.

    The savepoint gives all rows but the last free again, after commits of all of them have piled up.
    """
    found = await arena.fleet.busiest()
    if found is None:
        return
    member, owned = found
    arena.target = member.name
    last, *others = sorted(owned, reverse=True)
    lock = text("SELECT id FROM responses WHERE id = ANY(:ids) ORDER BY id DESC FOR UPDATE")
    with suppress(StoreUnavailable, AssertionError):  # Postgres ends this transaction, or nobody waits for it
        async with arena.fleet.db.begin() as connection:
            await connection.execute(lock, {"ids": [last]})
            async with connection.begin_nested() as savepoint:
                await connection.execute(lock, {"ids": others})
                await until(partial(blocks_somebody, connection), BLOCKED_SECONDS)
                await asyncio.sleep(PILE_UP_SECONDS)
                await savepoint.rollback()
            await until(partial(blocks_somebody, connection), BLOCKED_SECONDS)
            await connection.execute(lock, {"ids": others})


async def blocks_somebody(connection: AsyncConnection) -> bool:
    await asyncio.sleep(PAUSE_SECONDS)
    return bool((await connection.execute(text(f"SELECT count(*) {_BLOCKED}"))).scalar_one())


async def disk_full(arena: Arena) -> None:
    seconds = arena.seconds(0.3, LEASE_SECONDS + 1)
    with suppress(StoreUnavailable):
        await full_disk.fill(arena.fleet.db, seconds)
        await asyncio.sleep(seconds)


# -- a crash between a claim and the disk --------------------------------------------------------------------


async def killed_after_a_claim(arena: Arena) -> None:
    """Kills Postgres as soon as a claim is visible: it need not be on the disk yet."""
    async with arena.lock("postgres"):
        with suppress(StoreUnavailable, AssertionError):
            before = await _claims(arena.fleet)
            await until(lambda: _has_more_claims(arena.fleet, before), BLOCKED_SECONDS)
        await kill_postgres(arena)
        await started(arena.fleet.services.postgres)


async def _claims(fleet: Fleet) -> int:
    statement = text("SELECT coalesce(max(id), 0) FROM fault_audit WHERE after = 'in_progress'")
    async with fleet.db.autocommit() as connection:
        return int((await connection.execute(statement)).scalar_one())


async def _has_more_claims(fleet: Fleet, before: int) -> bool:
    return await _claims(fleet) > before


# -- rows that nobody can read -------------------------------------------------------------------------------

_CHUNK = """
    WITH owned AS MATERIALIZED (
        SELECT id FROM responses WHERE id = ANY(:ids) AND status = 'in_progress' ORDER BY id FOR UPDATE
    ), chosen AS MATERIALIZED (
        SELECT DISTINCT ON (k.response_id) k.response_id, k.first FROM chunks k JOIN owned o ON o.id = k.response_id
        ORDER BY k.response_id, random()
    )
    UPDATE chunks c SET {change} FROM chosen WHERE c.response_id = chosen.response_id AND c.first = chosen.first
"""
_REQUEST = "UPDATE responses SET {change} WHERE id = ANY(:ids) AND status IN ('queued', 'in_progress')"
DAMAGES = {
    "log: events damaged": _CHUNK.format(change="frames = 'poison'"),
    "log: tokens damaged": _CHUNK.format(change=r"tokens = '\x070707'"),
    "log: step of unknown shape": _CHUNK.format(change="""steps = '[{"novel": 1}]'"""),
    "log: result of a tool of unknown shape": _CHUNK.format(change="""steps = '[{"result": 7}]'"""),
    "row: request of unknown shape": _REQUEST.format(change="""request = '{"novel": 1}'"""),
}
"""What no version of the product writes, as statements about responses that are not final."""


def damaged(name: str) -> Inflict:
    """Damages two responses of a worker, which then hands over what it runs, or dies."""

    async def inflict(arena: Arena) -> None:
        found = await arena.fleet.busiest()
        if found is None:
            return
        member, owned = found
        arena.target = member.name
        ids = arena.random.sample(sorted(owned), min(2, len(owned)))
        with suppress(StoreUnavailable):
            arena.damaged.update(await _keys(arena.fleet, ids))
            await damage(arena.fleet, ids, name)
        member.signal(arena.random.choice((signal.SIGTERM, signal.SIGKILL)))

    return inflict


async def damage(fleet: Fleet, ids: Sequence[str], name: str) -> None:
    async with fleet.db.begin() as connection:
        await connection.execute(text(DAMAGES[name]), {"ids": list(ids)})


async def _keys(fleet: Fleet, ids: Sequence[str]) -> dict[str, str]:
    """Response id -> the key of its story, or a line's `custom_id`; without those that were damaged before."""
    statement = text(
        "SELECT id, coalesce(custom_id, request -> 'metadata' ->> 'key') AS key FROM responses WHERE id = ANY(:ids)"
    )
    async with fleet.db.autocommit() as connection:
        rows = await connection.execute(statement, {"ids": list(ids)})
        return {row.id: row.key for row in rows if row.key is not None}
