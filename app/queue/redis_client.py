"""Clients of Redis, how often a command is tried, and many commands as one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

T = TypeVar("T")

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 2.0
OLDEST_REDIS = (7, 0)
"""The first version with BLMPOP, by which workers take messages. Every Valkey is newer."""
IDLE_SECONDS = 10
"""An idle connection is checked so often, by the kernel and by kombu: a failover may leave it open and dead."""
TCP_KEEPALIVE: dict[str, Any] = {
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value
        for name, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    },
}
"""Options of every connection to Redis by TCP, Celery's and Flower's, too."""
TLS = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
"""Options of every connection to `rediss://`: the server proves who it is."""


def make_client(url: str) -> redis.asyncio.Redis:
    """A client that neither ends nor repeats a command: `answer` and `try_twice` do. Connects to nothing.

    redis-py's own time-out makes a task for each command, a fifth of its CPU (docs/internals/decisions/messages.md).
    """
    scheme = urlsplit(url).scheme
    return redis.asyncio.from_url(
        url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=None,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **({} if scheme == "unix" else TCP_KEEPALIVE),
        **(TLS if scheme == "rediss" else {}),
    )


async def answer(command: Awaitable[T]) -> T:
    """What Redis answers. Raises TimeoutError after REPLY_SECONDS."""
    async with asyncio.timeout(REPLY_SECONDS):
        return await command


async def try_twice(command: Callable[[], Awaitable[T]]) -> T:
    """Runs the command, once more if it fails: Redis may have closed the pooled connection.

    Raises what the second try raises, of whatever type: uvloop raises RuntimeError for a closed transport. Then the
    command may have been executed.
    """
    try:
        return await answer(command())
    except Exception:
        return await answer(command())


async def run_script(client: redis.asyncio.Redis, script: str, keys: Sequence[str], *values: str | bytes) -> None:
    """Runs a Lua script: many commands as one, for which redis-py packs one command and reads one reply.

    Its pipeline takes three times the CPU for 16 commands, six times for 128 (docs/internals/decisions/messages.md).
    """
    await cast(Awaitable[object], client.eval(script, len(keys), *keys, *values))


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """The facts that a check of an installation reads."""

    version: tuple[int, ...]
    now: float
    """Seconds since the epoch, by the server's clock."""
    answer_seconds: float
    role: str
    """`master` takes writes."""
    is_cluster: bool
    used_memory: int
    max_memory: int
    """0: as much as the machine has."""
    policy: str
    """The policy when Redis is full."""


class RedisTrouble(Exception):
    """Redis does not answer, or refuses a command. The message says which error it was."""


async def facts(url: str) -> RedisFacts:
    """Uses only what Longhaul's user may do (docs/operations.md). Raises RedisTrouble."""
    client = make_client(url)
    try:
        found = await version(url)
        seconds, microseconds = await answer(client.time())
        began = time.monotonic()
        await run_script(client, "return redis.call('EXISTS', KEYS[1])", ["unrouted"])
        took = time.monotonic() - began
        info: Any = await answer(client.info())
    except ResponseError as error:  # what the server says: it may be a right that the user lacks
        raise RedisTrouble(str(error)) from error
    except (RedisError, OSError) as error:
        raise RedisTrouble(type(error).__name__) from error
    finally:
        await client.aclose()
    return RedisFacts(
        version=found,
        now=seconds + microseconds / 1_000_000,
        answer_seconds=took,
        role=str(info.get("role", "master")),
        is_cluster=bool(info.get("cluster_enabled", 0)),
        used_memory=int(info.get("used_memory", 0)),
        max_memory=int(info.get("maxmemory", 0)),
        policy=str(info.get("maxmemory_policy", "noeviction")),
    )


async def version(url: str) -> tuple[int, ...]:
    """The version of Redis that the server is or stands for. Every user may say HELLO, whatever the ACL."""
    client = make_client(url)
    try:
        said: Any = await answer(cast(Any, client).execute_command("HELLO", 2))
    except ResponseError:  # Redis 5 does not know the command
        return (5,)
    finally:
        await client.aclose()
    pairs = said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
    return tuple(int(number) for number in pairs[b"version"].split(b".")[:2])
