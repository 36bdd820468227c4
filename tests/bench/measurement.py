"""One load on one contender, and what it cost: the client's figures, and what the servers used meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from config.settings import CHECKOUT
from tests.bench.load import Figures, Load

if TYPE_CHECKING:
    from tests.bench.contenders.base import Contender

MAX_LINE_BYTES = 1 << 28

Go = Callable[[], Awaitable[Figures]]
"""Starts the prepared load; returns the client's figures when it is done."""


class ClientFailed(Exception):
    """The client failed; its message is on stderr."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`cpu` is seconds by role."""

    figures: Figures
    cpu: dict[str, float]
    wal_bytes: int | None


@asynccontextmanager
async def client(load: Load) -> AsyncIterator[Go]:
    """A client process that has warmed up. The end of the block waits until it has cleaned up."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.client"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
        env=os.environ,
        limit=MAX_LINE_BYTES,
    )
    assert process.stdin and process.stdout
    reader, writer = process.stdout, process.stdin

    async def line_after(sent: bytes) -> bytes:
        writer.write(sent + b"\n")
        if not (line := await reader.readline()):
            raise ClientFailed("the client has ended")
        return line

    async def go() -> Figures:
        return Figures.decode(await line_after(b"go"))

    try:
        await line_after(load.encode())
        yield go
        if await process.wait():
            raise ClientFailed("the client could not clean up")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def measure_load(contender: Contender, load: Load) -> Measured:
    """Measures one load, without its warm-up. Raises ClientFailed."""
    async with contender.client(load) as go:
        wal, cpu = await contender.wal_bytes(), contender.cpu()
        figures = await go()
        used = {role: seconds - cpu.get(role, 0.0) for role, seconds in contender.cpu().items()}
        wal_after = await contender.wal_bytes()
    written = None if wal is None or wal_after is None else wal_after - wal
    return Measured(figures, {role.value: round(seconds, 3) for role, seconds in used.items()}, written)
