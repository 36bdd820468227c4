"""Faults of the world around the processes: clocks that jump, slow networks, a changed password, a failover."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import redis.asyncio

from tests.faults.arena import Arena, Inflict
from tests.faults.member import Role
from tests.faults.proxy import Mode

DAY = 86400
JUMPS = (-40 * DAY, -3600, -60, 60, 3600, 40 * DAY)
"""Seconds. 40 days are more than any retention."""
OTHER_PASSWORD = "another-password-of-the-fault-suite"


def clock_jumps(role: Role) -> Inflict:
    """Shifts the wall clock of a process for a while, then sets it right again. The process may die meanwhile."""

    async def inflict(arena: Arena) -> None:
        member, seconds = arena.pick(role), arena.seconds(0.5, 6)
        async with arena.lock(f"{member.name} clock"):
            assert member.clock is not None
            member.clock.shift(arena.random.choice(JUMPS))
            await asyncio.sleep(seconds)
            member.clock.shift(0)

    return inflict


def slow_network(role: Role, service: str) -> Inflict:
    """Delays everything between one process and one service for a while."""

    async def inflict(arena: Arena) -> None:
        member, seconds = arena.pick(role), arena.seconds(1, 6)
        proxy = member.postgres if service == "postgres" else member.redis
        async with arena.lock(f"{member.name} {service}"):
            proxy.set(Mode.SLOW)
            await asyncio.sleep(seconds)
            proxy.set(Mode.OPEN)

    return inflict


async def valkey_password_changed(arena: Arena) -> None:
    """Changes the password, closes half the connections after a moment, and changes it back later.

    Connections that are open work on. New ones are refused.
    """
    async with arena.lock("valkey"), own_connection(arena) as client:
        await client.execute_command("CONFIG", "SET", "requirepass", OTHER_PASSWORD)
        await asyncio.sleep(arena.seconds(0.1, 1))
        for kind in arena.random.choice((("normal",), ("pubsub",), ("normal", "pubsub"))):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind)
        await asyncio.sleep(arena.seconds(0.2, 3))
        password = urlsplit(arena.fleet.services.redis_url).password or ""
        await client.execute_command("CONFIG", "SET", "requirepass", password)


def own_connection(arena: Arena) -> redis.asyncio.Redis:
    client: redis.asyncio.Redis = redis.asyncio.from_url(
        arena.fleet.services.redis_url, single_connection_client=True, socket_timeout=10
    )
    return client


async def postgres_failed_over(arena: Arena) -> None:
    """Kills the primary, promotes its standby, and makes another standby. Only in runs with a standby."""
    pair = arena.fleet.services.pair
    assert pair is not None
    async with arena.lock("postgres"):
        await asyncio.to_thread(pair.fail_over)
        await asyncio.to_thread(pair.rebuild_standby)
