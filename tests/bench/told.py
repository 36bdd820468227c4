"""Processes that measure, and how they are told.

A line says what, theirs says that they are ready; `go` begins, and theirs says what came.
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


class Told:
    """One of them. `ended` makes the error of one that says nothing any more."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, ended: Callable[[], Awaitable[Exception]]) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = ended

    async def prepare(self, what: bytes) -> None:
        """Returns once it is ready."""
        self._writer.write(what + b"\n")
        await self._line()

    async def go(self) -> bytes:
        """Returns what it says at the end."""
        self._writer.write(b"go\n")
        return await self._line()

    def close(self) -> None:
        self._writer.close()

    async def _line(self) -> bytes:
        if not (said := await self._reader.readline()):
            raise await self._ended()
        return said


@asynccontextmanager
async def told_process(
    module: str, failure: Callable[[str], Exception], who: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Told, Process]]:
    """`python -m MODULE`, with `env` on top of ours; it is killed where it is left before its end."""
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
        return failure(f"{who} ended with status {await process.wait()}")

    try:
        yield Told(process.stdout, process.stdin, ended), process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
