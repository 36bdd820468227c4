"""Redis commands as bytes, many in one write. For what comes often: redis-py's pipeline takes four times the CPU."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import redis.asyncio
from redis.asyncio.connection import AbstractConnection


def packed(*parts: bytes) -> bytes:
    """One command as Redis reads it."""
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))


async def send(client: redis.asyncio.Redis, commands: Sequence[bytes], seconds: float) -> None:
    """Sends all of them on one connection of the client's, and returns once Redis has done them.

    Tries twice, waits for at most `seconds` each, and raises what the second try raises, which may be anything: then
    any of them may have been done.
    """
    pool = client.connection_pool
    connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    try:
        try:
            await _sent(connection, commands, seconds)
        except Exception:  # a connection that Redis has closed in the meantime shows like this; the next try connects
            await _sent(connection, commands, seconds)
    finally:
        await pool.release(connection)


async def _sent(connection: AbstractConnection, commands: Sequence[bytes], seconds: float) -> None:
    """Whatever goes wrong, no reply is left for who comes next."""
    try:
        await connection.send_packed_command(b"".join(commands))
        async with asyncio.timeout(seconds):
            for _ in commands:
                await connection.read_response(timeout=math.inf)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
