"""Faults of Valkey and Postgres, of the messages and events in them, and of everything at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from contextlib import suppress

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
from tests.faults.plan import MODEL
from tests.support.services import Server
from tests.support.waiting import until

START_SECONDS = 60.0
NOT_REPLICATING = "wait_event IS DISTINCT FROM 'SyncRep'"
"""A session that waits for the standby has committed already: if it is ended, a failover may take the commit back."""


async def started(server: Server) -> None:
    """Starts a service again. Retries, because an outgoing connection may hold its port for a moment."""

    async def start() -> bool:
        with suppress(LocalError):
            await asyncio.to_thread(server.start)
            return True
        return False

    await until(start, START_SECONDS, "the service is back")


# -- everything --------------------------------------------------------------------------------------------


async def all_terminated(arena: Arena) -> None:
    """SIGTERM to every process at once, services included, as when a machine shuts down; then all start again."""
    async with arena.lock("postgres"), arena.lock("valkey"):
        services = arena.fleet.services.postgres, arena.fleet.services.valkey
        for member in arena.fleet.members:
            member.signal_all(signal.SIGTERM, guardian=True)
        for server in services:
            server.terminate_all()
        for server in services:
            await asyncio.to_thread(server.stop)
            await started(server)


# -- Valkey ------------------------------------------------------------------------------------------------


async def valkey_emptied(arena: Arena) -> None:
    async with arena.lock("valkey"):
        valkey, home = arena.fleet.services.valkey, arena.fleet.services.folder / "home"
        await asyncio.to_thread(valkey.kill)
        await asyncio.to_thread(shutil.rmtree, home / "valkey")
        await started(valkey)


async def valkey_killed(arena: Arena) -> None:
    async with arena.lock("valkey"):
        valkey = arena.fleet.services.valkey
        await asyncio.to_thread(valkey.kill)
        await asyncio.sleep(arena.seconds(0, 2))
        await started(valkey)


async def valkey_restarted(arena: Arena) -> None:
    async with arena.lock("valkey"):
        await asyncio.to_thread(arena.fleet.services.valkey.stop)
        await started(arena.fleet.services.valkey)


async def valkey_stopped(arena: Arena) -> None:
    seconds = arena.seconds(0.2, 3)
    async with arena.lock("valkey"):
        with arena.fleet.services.valkey.frozen():
            await asyncio.sleep(seconds)


def valkey_commands(*commands: str) -> Inflict:
    async def inflict(arena: Arena) -> None:
        async with arena.lock("valkey"), arena.fleet.valkey as client:
            for command in commands:
                await client.execute_command(*command.split())

    return inflict


async def messages_repeated(arena: Arena) -> None:
    """Sends extra messages for responses that are queued, running or final, to workers that need not be theirs."""
    responses = text("SELECT id, queue, priority FROM responses ORDER BY random() LIMIT 20")
    workers = text("SELECT node FROM workers")
    queue = TaskQueue(load_settings(REDIS_URL=arena.fleet.services.redis_url))
    try:
        async with arena.fleet.db.autocommit() as connection:
            rows = (await connection.execute(responses)).all()
            nodes = sorted((await connection.execute(workers)).scalars())
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
        async with arena.fleet.db.autocommit() as connection:
            ids = list((await connection.execute(statement)).scalars())
        for response_id in ids:
            if response_id in arena.damaged:
                continue
            chunks = list((await logs.read(arena.fleet.db, response_id)).chunks)
            arena.random.shuffle(chunks)
            await pubsub.publish(chunks)
    await pubsub.close()


# -- Postgres ----------------------------------------------------------------------------------------------


async def postgres_killed(arena: Arena) -> None:
    async with arena.lock("postgres"):
        await kill_postgres(arena)
        await asyncio.sleep(arena.seconds(0, 1.5))
        await started(arena.fleet.services.postgres)


async def kill_postgres(arena: Arena) -> None:
    await asyncio.to_thread(arena.fleet.services.postgres.kill)
    arena.crashes.append(time.monotonic())


async def postgres_restarted(arena: Arena) -> None:
    async with arena.lock("postgres"):
        await asyncio.to_thread(arena.fleet.services.postgres.stop)
        await started(arena.fleet.services.postgres)


async def postgres_backend_killed(arena: Arena) -> None:
    """Postgres then ends all sessions and recovers."""
    async with arena.lock("postgres"):
        _, *children = arena.fleet.services.postgres.pids
        with suppress(ProcessLookupError):
            os.kill(arena.random.choice(children), signal.SIGKILL)
            arena.crashes.append(time.monotonic())


async def postgres_stopped(arena: Arena) -> None:
    seconds = arena.seconds(0.2, 2)
    async with arena.lock("postgres"):
        with arena.fleet.services.postgres.frozen():
            await asyncio.sleep(seconds)


async def sessions_terminated(arena: Arena) -> None:
    share = arena.seconds(0.1, 1)
    statement = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE backend_type = 'client backend' AND {NOT_REPLICATING}"
        " AND pid <> pg_backend_pid() AND random() < :share"
    )
    async with arena.lock("postgres"):
        with suppress(StoreUnavailable):
            async with arena.fleet.db.autocommit() as connection:
                await connection.execute(statement, {"share": share})
