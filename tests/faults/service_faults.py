"""Faults of Valkey and Postgres as a whole, of the messages and events in them, and of everything at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

from sqlalchemy import text

from app.local.errors import LocalError
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.store.database import StoreUnavailable
from app.store.keys import pubsub_key
from app.store.responses import logs
from app.streaming.pubsub import PubSub
from config.settings import load_settings
from tests.faults.arena import Arena, Inflict
from tests.faults.member import Role
from tests.faults.plan import MODEL
from tests.faults.process_faults import suspend
from tests.support.services import Server
from tests.support.waiting import until

START_SECONDS = 60.0
OTHER_PASSWORD = "another-password-of-the-fault-suite"

Name = Literal["postgres", "valkey"]


def away(name: Name, end: Literal["kill", "stop"], most: float = 0.0) -> Inflict:
    """Ends a service, and starts it again after `most` seconds at most: Postgres as it was, Valkey empty."""

    async def inflict(arena: Arena) -> None:
        server: Server = getattr(arena.fleet.services, name)
        async with arena.lock(name):
            await asyncio.to_thread(server.kill if end == "kill" else server.stop)
            if name == "postgres" and end == "kill":
                arena.crashes.append(time.monotonic())
            await asyncio.sleep(arena.seconds(0, most))
            await started(server)

    return inflict


async def started(server: Server) -> None:
    """Starts a service again. Retries, because an outgoing connection may hold its port for a moment."""

    async def start() -> bool:
        with suppress(LocalError):
            await asyncio.to_thread(server.start)
            return True
        return False

    await until(start, START_SECONDS, "the service is back")


def frozen(name: Name, most: float) -> Inflict:
    async def inflict(arena: Arena) -> None:
        seconds = arena.seconds(0.2, most)
        async with arena.lock(name):
            with getattr(arena.fleet.services, name).frozen():
                await asyncio.sleep(seconds)

    return inflict


async def all_terminated(arena: Arena) -> None:
    """SIGTERM to every process at once, services included, as when a machine shuts down; then all start again."""
    async with arena.lock("postgres"), arena.lock("valkey"):
        services = arena.fleet.services.postgres, arena.fleet.services.valkey
        for member in arena.fleet.members:
            member.signal_all(signal.SIGTERM)
        for server in services:
            server.terminate_all()
        for server in services:
            await asyncio.to_thread(server.stop)
            await started(server)


# -- Postgres --------------------------------------------------------------------------------------------------


async def backend_killed(arena: Arena) -> None:
    """Postgres then ends all sessions and recovers."""
    async with arena.lock("postgres"):
        _, *children = arena.fleet.services.postgres.pids
        with suppress(ProcessLookupError):
            os.kill(arena.random.choice(children), signal.SIGKILL)
            arena.crashes.append(time.monotonic())


async def failed_over(arena: Arena) -> None:
    """Kills the primary, promotes its standby, and makes another standby. Only in runs with a standby."""
    pair = arena.fleet.services.pair
    assert pair is not None
    async with arena.lock("postgres"):
        await asyncio.to_thread(pair.fail_over)
        await asyncio.to_thread(pair.rebuild_standby)


# -- Valkey ----------------------------------------------------------------------------------------------------


def commands(*sent: str) -> Inflict:
    async def inflict(arena: Arena) -> None:
        async with arena.lock("valkey"), arena.fleet.valkey as client:
            for command in sent:
                await client.execute_command(*command.split())

    return inflict


async def password_changed(arena: Arena) -> None:
    """Changes the password, closes connections after a moment, and changes it back later.

    Connections that are open work on. New ones are refused.
    """
    password = urlsplit(arena.fleet.services.redis_url).password or ""
    async with arena.lock("valkey"), arena.fleet.valkey as pool, pool.client() as client:
        await client.execute_command("CONFIG", "SET", "requirepass", OTHER_PASSWORD)
        await asyncio.sleep(arena.seconds(0.1, 1))
        for kind in arena.random.choice((("normal",), ("pubsub",), ("normal", "pubsub"))):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind)
        await asyncio.sleep(arena.seconds(0.2, 3))
        await client.execute_command("CONFIG", "SET", "requirepass", password)


async def flushed_without_maintenance(arena: Arena) -> None:
    """Empties Redis while all of maintenance is stopped: only workers dispatch, until nobody has anything to claim."""
    seconds = arena.seconds(0.5, 4)
    undo = suspend([pid for member in arena.fleet.of(Role.MAINTENANCE) if (pid := member.pid) is not None])
    try:
        await commands("FLUSHALL")(arena)
        await asyncio.sleep(seconds)
    finally:
        undo()


async def messages_repeated(arena: Arena) -> None:
    """Sends extra messages for responses that are queued, running or final, to workers that need not be theirs."""
    queue = TaskQueue(load_settings(REDIS_URL=arena.fleet.services.redis_url))
    try:
        found = "SELECT id, queue, priority FROM responses ORDER BY random() LIMIT 20"
        rows = await arena.fleet.db.execute(text(found))
        nodes = sorted(row.node for row in await arena.fleet.db.execute(text("SELECT node FROM workers")))
        for row in rows if nodes else ():
            node = arena.random.choice(nodes)
            await queue.enqueue(Message(row.id, MODEL, row.queue, row.priority, sent_to=node))
    except (StoreUnavailable, QueueUnavailable):
        pass
    finally:
        await queue.close()


async def events_repeated(arena: Arena) -> None:
    """Publishes committed chunks again, out of order."""
    statement = text("SELECT response_id FROM chunks GROUP BY 1 ORDER BY max(ctid) DESC LIMIT 10")
    pubsub = PubSub(arena.fleet.services.redis_url, pubsub_key(arena.fleet.db))
    with suppress(StoreUnavailable):
        for row in await arena.fleet.db.execute(statement):
            chunks = list((await logs.read(arena.fleet.db, row.response_id)).chunks)
            arena.random.shuffle(chunks)
            await pubsub.publish(chunks)
    await pubsub.close()
