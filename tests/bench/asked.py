"""One load put to one contender, and what it cost: the client's figures and the servers' counters around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.load import Figures, Load
from tests.bench.processes import busy_seconds
from tests.bench.told import Told, told_process

if TYPE_CHECKING:
    from tests.bench.contenders.base import Contender

READY = b"ready\n"

Go = Callable[[], Awaitable[Figures]]
"""Starts what was prepared, and returns when it has been asked."""


class ClientFailed(Exception):
    """The client could not go on; what it said is on stderr."""


@dataclass(frozen=True, slots=True)
class Asked:
    """CPU in seconds by role. `others_cpu` is what processes of nobody here have used meanwhile."""

    figures: Figures
    cpu: dict[str, float]
    wal_bytes: int | None
    others_cpu: float


@asynccontextmanager
async def client(load: Load) -> AsyncIterator[Go]:
    """A client process, warmed up. It is given its time to clean up at the end."""
    async with told_process("tests.bench.client", ClientFailed, "the client") as (told, process):
        await told.prepare(load.encode())
        yield figures_of(told)
        if await process.wait():
            raise ClientFailed("the client could not clean up")


def figures_of(told: Told) -> Go:
    async def go() -> Figures:
        return Figures.decode(await told.go())

    return go


async def ask(contender: Contender, load: Load, around: AbstractAsyncContextManager[None] | None = None) -> Asked:
    """`around` is entered for what is measured, without the warm-up. Raises ClientFailed."""
    async with contender.client(load) as go, around or nullcontext():
        machine, wal, cpu = busy_seconds(), await contender.wal_bytes(), contender.cpu()
        figures = await go()
        used = {role: seconds - cpu.get(role, 0.0) for role, seconds in contender.cpu().items()}
        all_used = busy_seconds() - machine
        wal_after = await contender.wal_bytes()
    written = None if wal is None or wal_after is None else wal_after - wal
    others = max(0.0, all_used - sum(used.values()) - figures.client_cpu)
    return Asked(figures, {role.value: round(seconds, 3) for role, seconds in used.items()}, written, round(others, 3))
