"""Processes that measure, and the lines by which they are controlled.

We send a line that says what to measure, the process answers when it is ready; we send `go`, it answers with figures.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from config.settings import CHECKOUT

MAX_LINE_BYTES = 1 << 28


class MeasuringProcess:
    """A measuring process. `ended` makes the exception to raise when its output has ended."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, ended: Callable[[], Awaitable[Exception]]) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = ended

    async def prepare(self, work: bytes) -> None:
        """Sends the work; returns when the process is ready."""
        self._writer.write(work + b"\n")
        await self._line()

    async def go(self) -> bytes:
        """Starts the measurement; returns the figures."""
        self._writer.write(b"go\n")
        return await self._line()

    def close(self) -> None:
        self._writer.close()

    async def _line(self) -> bytes:
        if not (line := await self._reader.readline()):
            raise await self._ended()
        return line


@asynccontextmanager
async def measuring_process(
    module: str, failure: Callable[[str], Exception], name: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[MeasuringProcess, Process]]:
    """`python -m MODULE` with `env` on top of our environment. If it still runs when the block ends, it is killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
        env={**os.environ, **(env or {})},
        limit=MAX_LINE_BYTES,
    )
    assert process.stdin and process.stdout

    async def ended() -> Exception:
        return failure(f"{name} ended with status {await process.wait()}")

    try:
        yield MeasuringProcess(process.stdout, process.stdin, ended), process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
