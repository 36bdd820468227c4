"""One load on one contender, and what it cost: the client's figures, and what the servers used meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.load import Figures, Load
from tests.bench.measuring_process import MeasuringProcess, measuring_process
from tests.bench.processes import busy_seconds

if TYPE_CHECKING:
    from tests.bench.contenders.base import Contender

READY = b"ready\n"

Go = Callable[[], Awaitable[Figures]]
"""Starts the prepared load; returns the client's figures when it is done."""


class ClientFailed(Exception):
    """The client failed; its message is on stderr."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`cpu` is seconds by role. `others_cpu` is what unrelated processes used meanwhile."""

    figures: Figures
    cpu: dict[str, float]
    wal_bytes: int | None
    others_cpu: float


@asynccontextmanager
async def client(load: Load) -> AsyncIterator[Go]:
    """A client process that has warmed up. The end of the block waits until it has cleaned up."""
    async with measuring_process("tests.bench.client", ClientFailed, "the client") as (measuring, process):
        await measuring.prepare(load.encode())
        yield figures_of(measuring)
        if await process.wait():
            raise ClientFailed("the client could not clean up")


def figures_of(measuring: MeasuringProcess) -> Go:
    async def go() -> Figures:
        return Figures.decode(await measuring.go())

    return go


async def measure_load(
    contender: Contender, load: Load, around: AbstractAsyncContextManager[None] | None = None
) -> Measured:
    """Measures one load. `around` is entered for the measurement, not for the warm-up. Raises ClientFailed."""
    async with contender.client(load) as go, around or nullcontext():
        machine, wal, cpu = busy_seconds(), await contender.wal_bytes(), contender.cpu()
        figures = await go()
        used = {role: seconds - cpu.get(role, 0.0) for role, seconds in contender.cpu().items()}
        all_used = busy_seconds() - machine
        wal_after = await contender.wal_bytes()
    written = None if wal is None or wal_after is None else wal_after - wal
    others = max(0.0, all_used - sum(used.values()) - figures.client_cpu)
    return Measured(
        figures, {role.value: round(seconds, 3) for role, seconds in used.items()}, written, round(others, 3)
    )
