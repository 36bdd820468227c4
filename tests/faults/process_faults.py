"""Faults of processes and of their connections. The fleet starts killed processes again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress

import httpx
import psutil
from sqlalchemy import text

from app.store.database import StoreUnavailable
from tests.faults.arena import Arena, Inflict, Takeover
from tests.faults.fleet import Fleet
from tests.faults.member import Role
from tests.faults.polling import with_pause
from tests.faults.proxy import Mode
from tests.support.waiting import until

WHOLE_SECONDS = 90.0
HARD_KILLS = 10


def signalled(role: Role, number: signal.Signals, *, group: bool = False) -> Inflict:
    """A signal to one process, or to its whole control group at once."""

    async def inflict(arena: Arena) -> None:
        member = arena.pick(role)
        async with arena.lock(member.name):
            owned = await arena.fleet.owned() if role is Role.WORKER else {}
            at = time.time()
            member.signal_all(number) if group else member.signal(number)
            if mine := list(owned.get(member.name, ())):
                arena.takeovers.append(Takeover(number.name, at, await _committed(arena.fleet, mine)))

    return inflict


def stopped(role: Role, minimum: float, maximum: float) -> Inflict:
    """SIGSTOP, and SIGCONT after `minimum` to `maximum` seconds."""

    async def inflict(arena: Arena) -> None:
        member, seconds = arena.pick(role), arena.seconds(minimum, maximum)
        async with arena.lock(member.name):
            pid = member.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return inflict


def group_stopped(role: Role, minimum: float, maximum: float) -> Inflict:
    """`stopped` of the process with its guardian and all its children, as when a machine is suspended."""

    async def inflict(arena: Arena) -> None:
        member, seconds = arena.pick(role), arena.seconds(minimum, maximum)
        async with arena.lock(member.name):
            pids = member.group
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                if number is signal.SIGSTOP:
                    await asyncio.sleep(seconds)

    return inflict


async def engine_killed(arena: Arena) -> None:
    """Kills EngineCore alone, vLLM's process that holds the model; the worker has to notice."""
    member = arena.pick(Role.WORKER)
    async with arena.lock(member.name):
        with suppress(psutil.Error):
            for process in psutil.Process(member.guardian).children(recursive=True):
                if "EngineCore" in " ".join(process.cmdline()):
                    process.kill()


async def hard_killed_again(arena: Arena) -> None:
    """`kill -9` of whichever worker runs one response, up to ten times, each time after progress."""
    chosen, attempt = "", 0
    for _ in range(HARD_KILLS):
        for name, own in (await arena.fleet.owned()).items():
            found = chosen or next(iter(own))
            if own.get(found, 0) > attempt:
                chosen, attempt = found, own[found]
                next(member for member in arena.fleet.of(Role.WORKER) if member.name == name).signal(signal.SIGKILL)
        await asyncio.sleep(arena.seconds(0.5, 1.5))


async def engine_dies_of_a_request(arena: Arena) -> None:
    """A request that its engine dies of, before its first token or after some, each time that it runs."""
    fleet, tokens = arena.fleet, arena.random.choice((0, 0, 5, 30))
    body = {"model": fleet.plan.model, "input": f"/die {tokens}", "background": True}
    made = ""

    async def posted(path: str, body: dict[str, object] | None = None) -> httpx.Response | None:
        with suppress(httpx.TransportError):
            answer = await fleet.http.post(f"{arena.random.choice(fleet.urls)}/v1/responses{path}", json=body)
            return answer if answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND) else None
        return None

    answer = await posted("", body)
    if answer is not None:
        made = answer.json()["id"]
        await asyncio.sleep(arena.seconds(2, 8))  # a plan forgives more crashes than a schedule has time for
        await until(with_pause(lambda: posted(f"/{made}/cancel")), WHOLE_SECONDS, "it is cancelled")


def all_killed(role: Role) -> Inflict:
    async def inflict(arena: Arena) -> None:
        for member in arena.fleet.of(role):
            member.signal(signal.SIGKILL)

    return inflict


async def upgraded(arena: Arena) -> None:
    """As docs/operations.md says: migrations, then workers, maintenance and APIs, one process after the other."""
    await arena.fleet.upgrade()
    for role in (Role.WORKER, Role.MAINTENANCE, Role.API, Role.FLOWER):
        await restarted_in_turn(role)(arena)


def restarted_in_turn(role: Role) -> Inflict:
    """As an upgrade does it: SIGTERM to each process, and the next one only when this one is ready again."""

    async def inflict(arena: Arena) -> None:
        for member in arena.fleet.of(role):
            starts = member.starts
            member.signal(signal.SIGTERM)
            await until(lambda m=member, n=starts: m.starts > n, WHOLE_SECONDS, f"{member.name} is back")  # type: ignore[misc]
            await arena.fleet.wait_until_whole(WHOLE_SECONDS, f"{member.name} is ready")

    return inflict


def network(role: Role, service: str, minimum: float = 0.1, maximum: float = 1.5) -> Inflict:
    """Breaks the connections between one process and one service: reset, or cut, stalled or muted for a while."""

    async def inflict(arena: Arena) -> None:
        member = arena.pick(role)
        proxy = member.postgres if service == "postgres" else member.redis
        mode = arena.random.choice(("reset", Mode.CUT, Mode.STALL, Mode.MUTE))
        seconds = arena.seconds(minimum, maximum)
        async with arena.lock(f"{member.name} {service}"):
            if not isinstance(mode, Mode):
                proxy.reset()
                return
            proxy.set(mode)
            await asyncio.sleep(seconds)
            if mode is Mode.MUTE:
                proxy.reset()  # drops the answers that were withheld
            proxy.set(Mode.OPEN)

    return inflict


async def _committed(fleet: Fleet, owned: list[str]) -> dict[str, int]:
    statement = text("SELECT response_id, max(last) AS last FROM chunks WHERE response_id = ANY(:ids) GROUP BY 1")
    try:
        async with fleet.db.autocommit() as connection:
            return {row.response_id: row.last for row in await connection.execute(statement, {"ids": owned})}
    except StoreUnavailable:
        return {}
