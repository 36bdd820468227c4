"""Clients of Redis, and how often a command is tried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

T = TypeVar("T")

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 2.0


def make_client(url: str) -> redis.asyncio.Redis:
    """A client that neither waits long nor retries: `try_twice` does. Connects to nothing."""
    return redis.asyncio.from_url(
        url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=REPLY_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )


async def try_twice(command: Callable[[], Awaitable[T]]) -> T:
    """Runs the command, once more if it fails: Redis may have closed the pooled connection.

    Raises what the second try raises, of whatever type: uvloop raises RuntimeError for a closed transport. Then the
    command may have been executed.
    """
    try:
        return await command()
    except Exception:
        return await command()
