"""The faults: what each one does to the fleet, and how it heals.

A fault takes the target that the schedule chose (`Arena.pick`), breaks it, and returns once it is whole again or
on its way there: a killed process is started again by the fleet at once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import psutil
from sqlalchemy import text

from app.local.errors import LocalError
from app.queue import QueueUnavailable, TaskQueue, make_celery
from app.relay import Relay, RelayUnavailable
from app.store import journal
from app.store.database import StoreUnavailable
from config.settings import load_settings
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.plan import LEASE_SECONDS, MODEL
from tests.faults.proxy import Mode
from tests.support.services import Server
from tests.support.waiting import until

START_SECONDS = 60.0
BEYOND = (LEASE_SECONDS + 0.7, LEASE_SECONDS + 2.5)
"""Seconds after which a worker that is not heard of is taken for dead, and a little."""


@dataclass(slots=True)
class Takeover:
    """A worker that was killed or told to stop, and how far its responses had come."""

    how: str
    at: float
    """Monotonic seconds."""
    last: dict[str, int]
    """Response id -> the last event that it had committed."""


@dataclass(slots=True)
class Arena:
    """What faults work on. `random` is the fault's own."""

    fleet: Fleet
    random: Random
    locks: dict[str, asyncio.Lock]
    takeovers: list[Takeover] = field(default_factory=list)
    target: str = ""
    """The process that was chosen, where it is one."""

    def pick(self, role: Role) -> Member:
        member = self.random.choice(self.fleet.of(role))
        self.target = member.name
        return member

    def lock(self, name: str) -> asyncio.Lock:
        """One fault at a time for each target."""
        return self.locks.setdefault(name, asyncio.Lock())

    def seconds(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)


Inflict = Callable[[Arena], Awaitable[None]]


def _signalled(role: Role, number: signal.Signals) -> Inflict:
    async def inflict(arena: Arena) -> None:
        member = arena.pick(role)
        async with arena.lock(member.name):
            owned = await _owned(arena.fleet, member) if role is Role.WORKER else None
            at = time.monotonic()
            member.signal(number)
            if owned is not None:
                arena.takeovers.append(Takeover(number.name, at, await _committed(arena.fleet, owned)))

    return inflict


def _stopped(role: Role, least: float, most: float) -> Inflict:
    """SIGSTOP, and SIGCONT after a while."""

    async def inflict(arena: Arena) -> None:
        member, seconds = arena.pick(role), arena.seconds(least, most)
        async with arena.lock(member.name):
            pid = member.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return inflict


async def _engine_killed(arena: Arena) -> None:
    """EngineCore alone, the process of vLLM that holds the model; the worker has to notice."""
    member = arena.pick(Role.WORKER)
    async with arena.lock(member.name):
        with suppress(psutil.Error):
            for process in psutil.Process(member.pid).children(recursive=True):
                if "EngineCore" in " ".join(process.cmdline()):
                    process.kill()


def _all_killed(role: Role) -> Inflict:
    async def inflict(arena: Arena) -> None:
        for member in arena.fleet.of(role):
            member.signal(signal.SIGKILL)

    return inflict


def _network(role: Role, service: str, least: float = 0.1, most: float = 1.5) -> Inflict:
    """Between one process and one service: reset, cut, stalled, or deaf to answers."""

    async def inflict(arena: Arena) -> None:
        member = arena.pick(role)
        proxy = member.postgres if service == "postgres" else member.redis
        how = arena.random.choice(("reset", *(mode for mode in Mode if mode is not Mode.OPEN)))
        seconds = arena.seconds(least, most)
        async with arena.lock(f"{member.name} {service}"):
            if not isinstance(how, Mode):
                proxy.reset()
                return
            proxy.set(how)
            await asyncio.sleep(seconds)
            if how is Mode.MUTE:
                proxy.reset()  # the answers that were withheld are lost
            proxy.set(Mode.OPEN)

    return inflict


async def started(server: Server) -> None:
    """Starts a service again. Its port may be somebody's for a moment: a port number of an outgoing connection."""

    async def tried() -> bool:
        with suppress(LocalError):
            await asyncio.to_thread(server.start)
            return True
        return False

    await until(tried, START_SECONDS, "the service is back")


# -- Valkey ------------------------------------------------------------------------------------------------


async def _valkey_lost(arena: Arena) -> None:
    async with arena.lock("valkey"):
        valkey, home = arena.fleet.services.valkey, arena.fleet.services.folder / "home"
        await asyncio.to_thread(valkey.kill)
        await asyncio.to_thread(shutil.rmtree, home / "valkey")
        await started(valkey)


async def _valkey_killed(arena: Arena) -> None:
    async with arena.lock("valkey"):
        valkey = arena.fleet.services.valkey
        await asyncio.to_thread(valkey.kill)
        await asyncio.sleep(arena.seconds(0, 2))
        await started(valkey)


async def _valkey_restarted(arena: Arena) -> None:
    async with arena.lock("valkey"):
        await asyncio.to_thread(arena.fleet.services.valkey.stop)
        await started(arena.fleet.services.valkey)


async def _valkey_stopped(arena: Arena) -> None:
    seconds = arena.seconds(0.2, 3)
    async with arena.lock("valkey"):
        with arena.fleet.services.valkey.frozen():
            await asyncio.sleep(seconds)


def _valkey_told(*commands: str) -> Inflict:
    async def inflict(arena: Arena) -> None:
        async with arena.lock("valkey"), arena.fleet.valkey as client:
            for command in commands:
                await client.execute_command(*command.split())

    return inflict


async def _messages_repeated(arena: Arena) -> None:
    """Messages that nobody sent come in: for responses that wait, run, and ended long ago."""
    statement = text("SELECT id, queue, priority FROM responses ORDER BY random() LIMIT 20")
    queue = TaskQueue(make_celery(load_settings(REDIS_URL=arena.fleet.services.redis_url)))
    try:
        async with arena.fleet.db.autocommit() as connection:
            rows = (await connection.execute(statement)).all()
        for row in rows:
            await queue.enqueue(row.id, MODEL, row.queue, row.priority)
    except (StoreUnavailable, QueueUnavailable):
        pass
    finally:
        queue.close()


async def _events_repeated(arena: Arena) -> None:
    """Readers hear what they heard before, out of order."""
    statement = text("SELECT response_id FROM chunks GROUP BY 1 ORDER BY max(ctid) DESC LIMIT 10")
    relay = Relay(arena.fleet.services.redis_url)
    with suppress(StoreUnavailable, RelayUnavailable):
        async with arena.fleet.db.autocommit() as connection:
            ids = list((await connection.execute(statement)).scalars())
        for response_id in ids:
            chunks = list((await journal.read(arena.fleet.db, response_id)).chunks)
            arena.random.shuffle(chunks)
            await relay.publish(chunks)
    await relay.close()


# -- Postgres ----------------------------------------------------------------------------------------------


async def _postgres_killed(arena: Arena) -> None:
    async with arena.lock("postgres"):
        postgres = arena.fleet.services.postgres
        await asyncio.to_thread(postgres.kill)
        await asyncio.sleep(arena.seconds(0, 1.5))
        await started(postgres)


async def _postgres_restarted(arena: Arena) -> None:
    async with arena.lock("postgres"):
        await asyncio.to_thread(arena.fleet.services.postgres.stop)
        await started(arena.fleet.services.postgres)


async def _postgres_backend_killed(arena: Arena) -> None:
    """Postgres then throws all sessions out and recovers."""
    async with arena.lock("postgres"):
        _, *children = arena.fleet.services.postgres.pids
        with suppress(ProcessLookupError):
            os.kill(arena.random.choice(children), signal.SIGKILL)


async def _postgres_stopped(arena: Arena) -> None:
    seconds = arena.seconds(0.2, 2)
    async with arena.lock("postgres"):
        with arena.fleet.services.postgres.frozen():
            await asyncio.sleep(seconds)


async def _sessions_terminated(arena: Arena) -> None:
    share = arena.seconds(0.1, 1)
    statement = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < :share"
    )
    async with arena.lock("postgres"):
        with suppress(StoreUnavailable):
            async with arena.fleet.db.autocommit() as connection:
                await connection.execute(statement, {"share": share})


# -- who had what ------------------------------------------------------------------------------------------


async def _owned(fleet: Fleet, member: Member) -> list[str]:
    """The responses that this worker has in progress; none where Postgres does not say."""
    statement = text("SELECT r.id FROM responses r JOIN workers w ON w.id = r.worker WHERE w.pid = :pid")
    try:
        async with fleet.db.autocommit() as connection:
            return list((await connection.execute(statement, {"pid": member.pid})).scalars())
    except StoreUnavailable:
        return []


async def _committed(fleet: Fleet, owned: list[str]) -> dict[str, int]:
    statement = text("SELECT response_id, max(last) AS last FROM chunks WHERE response_id = ANY(:ids) GROUP BY 1")
    try:
        async with fleet.db.autocommit() as connection:
            return {row.response_id: row.last for row in await connection.execute(statement, {"ids": owned})}
    except StoreUnavailable:
        return {}


KINDS: dict[str, tuple[int, Inflict]] = {
    "worker: kill -9": (8, _signalled(Role.WORKER, signal.SIGKILL)),
    "worker: SIGTERM": (8, _signalled(Role.WORKER, signal.SIGTERM)),
    "worker: stopped within its lease": (6, _stopped(Role.WORKER, 0.2, LEASE_SECONDS - 1)),
    "worker: stopped beyond its lease": (4, _stopped(Role.WORKER, *BEYOND)),
    "engine: EngineCore killed": (0, _engine_killed),
    "workers: all killed": (1, _all_killed(Role.WORKER)),
    "api: kill -9": (6, _signalled(Role.API, signal.SIGKILL)),
    "api: SIGTERM": (4, _signalled(Role.API, signal.SIGTERM)),
    "api: stopped": (4, _stopped(Role.API, 0.2, 3)),
    "maintenance: kill -9": (4, _signalled(Role.MAINTENANCE, signal.SIGKILL)),
    "maintenance: SIGTERM": (2, _signalled(Role.MAINTENANCE, signal.SIGTERM)),
    "maintenance: stopped": (2, _stopped(Role.MAINTENANCE, 0.5, 5)),
    "flower: kill -9": (1, _signalled(Role.FLOWER, signal.SIGKILL)),
    "valkey: killed, started empty": (3, _valkey_lost),
    "valkey: killed": (2, _valkey_killed),
    "valkey: restarted": (2, _valkey_restarted),
    "valkey: stopped": (4, _valkey_stopped),
    "valkey: FLUSHALL": (8, _valkey_told("FLUSHALL")),
    "valkey: connections killed": (4, _valkey_told("CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub")),
    "postgres: killed": (2, _postgres_killed),
    "postgres: restarted": (2, _postgres_restarted),
    "postgres: one backend killed": (2, _postgres_backend_killed),
    "postgres: stopped": (3, _postgres_stopped),
    "postgres: sessions terminated": (6, _sessions_terminated),
    "queue: messages repeated": (6, _messages_repeated),
    "relay: events repeated": (6, _events_repeated),
    "network: worker and postgres": (8, _network(Role.WORKER, "postgres")),
    "network: worker and postgres, beyond its lease": (3, _network(Role.WORKER, "postgres", *BEYOND)),
    "network: worker and valkey": (6, _network(Role.WORKER, "valkey")),
    "network: api and postgres": (8, _network(Role.API, "postgres")),
    "network: api and valkey": (6, _network(Role.API, "valkey")),
    "network: maintenance and postgres": (3, _network(Role.MAINTENANCE, "postgres")),
    "network: maintenance and valkey": (3, _network(Role.MAINTENANCE, "valkey")),
}
"""Name -> how often, in proportion, and what it does. What never happens by itself has to be asked for by name."""
