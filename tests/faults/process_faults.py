"""Faults of processes, of their connections and of their clocks. The fleet starts killed processes again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import httpx

from tests.faults.arena import Arena, Inflict, Undo
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.plan import MODEL, WHOLE_SECONDS
from tests.faults.polling import with_pause
from tests.faults.proxy import Mode
from tests.support.waiting import until

DAY = 86400
JUMPS = (-40 * DAY, -3600, -60, 60, 3600, 40 * DAY)
"""Seconds. 40 days are more than any retention."""


def signalled(role: Role, number: signal.Signals, *, group: bool = False) -> Inflict:
    """A signal to one process, or to its whole control group at once."""

    async def inflict(arena: Arena) -> None:
        member = arena.pick(role)
        async with arena.lock(member.name):
            member.signal_all(number) if group else member.signal(number)

    return inflict


def all_killed(*roles: Role) -> Inflict:
    async def inflict(arena: Arena) -> None:
        for role in roles:
            for member in arena.fleet.of(role):
                member.signal(signal.SIGKILL)

    return inflict


# -- what is done to one process and undone after a while ------------------------------------------------------


Do = Callable[[Arena, Member], Undo]
Service = Literal["postgres", "redis", "front"]
"""An attribute of Member; `front`: a server has the proxy, its worker is the client."""


def lasting(role: Role, minimum: float, maximum: float, do: Do, part: str = "") -> Inflict:
    """Does this to a process, or to a part of it, for `minimum` to `maximum` seconds. It may die meanwhile."""

    async def inflict(arena: Arena) -> None:
        member, seconds = arena.pick(role), arena.seconds(minimum, maximum)
        async with arena.lock(f"{member.name}{part}"):
            undo = do(arena, member)
            await asyncio.sleep(seconds)
            undo()

    return inflict


def stop(_: Arena, member: Member) -> Undo:
    return suspend([member.pid] if member.pid is not None else [])


def stop_group(_: Arena, member: Member) -> Undo:
    """With all its children, as when a machine is suspended."""
    return suspend(member.group)


def suspend(pids: Iterable[int]) -> Undo:
    pids = list(pids)
    send(signal.SIGSTOP, pids)
    return partial(send, signal.SIGCONT, pids)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def shift_clock(arena: Arena, member: Member) -> Undo:
    assert member.clock is not None
    member.clock.shift(arena.random.choice(JUMPS))
    return partial(member.clock.shift, 0)


def be_full(_: Arena, member: Member) -> Undo:
    """A server refuses everything (503)."""
    member.signal(signal.SIGUSR1)

    def undo() -> None:
        member.signal(signal.SIGUSR2)

    return undo


def network(service: Service, *modes: Mode | None) -> Do:
    """Breaks or slows the connections between a process and a service; None: they are reset, and new ones work."""

    def do(arena: Arena, member: Member) -> Undo:
        proxy, mode = getattr(member, service), arena.random.choice(modes)
        if mode is None:
            proxy.reset()
            return lambda: None
        proxy.set(mode)

        def undo() -> None:
            if mode is Mode.MUTE:
                proxy.reset()  # drops the answers that were withheld
            proxy.set(Mode.OPEN)

        return undo

    return do


# -- several steps ---------------------------------------------------------------------------------------------


async def engine_dies_of_a_request(arena: Arena) -> None:
    """A request that its engine dies of, before its first token or after some, each time that it runs."""
    fleet, tokens = arena.fleet, arena.random.choice((0, 0, 5, 30))

    async def posted(path: str, body: dict[str, object] | None = None) -> httpx.Response | None:
        with suppress(httpx.TransportError):
            answer = await fleet.http.post(f"{arena.random.choice(fleet.urls)}/v1/responses{path}", json=body)
            return answer if answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND) else None
        return None

    answer = await posted("", {"model": MODEL, "input": f"/die {tokens}", "background": True})
    if answer is not None:
        cancel = f"/{answer.json()['id']}/cancel"
        await asyncio.sleep(arena.seconds(2, 8))  # a plan forgives more crashes than a schedule has time for
        await until(with_pause(lambda: posted(cancel)), WHOLE_SECONDS, "it is cancelled")


def restarted_in_turn(*roles: Role) -> Inflict:
    """As an upgrade does it: SIGTERM to each process, and the next one only when this one is ready again."""

    async def inflict(arena: Arena) -> None:
        await restart(arena.fleet, [member for role in roles for member in arena.fleet.of(role)])

    return inflict


async def restart(fleet: Fleet, members: Sequence[Member]) -> None:
    """One after the other."""
    for member in members:
        starts = member.starts
        member.signal(signal.SIGTERM)
        await until(lambda m=member, n=starts: m.starts > n, WHOLE_SECONDS, f"{member.name} is back")  # type: ignore[misc]
        await fleet.wait_until_whole(condition=f"{member.name} is ready")


async def upgraded(arena: Arena) -> None:
    """As docs/operations.md says: migrations, then workers, maintenance and APIs, one process after the other."""
    await arena.fleet.upgrade()
    await restarted_in_turn(Role.WORKER, Role.MAINTENANCE, Role.API, Role.FLOWER)(arena)
