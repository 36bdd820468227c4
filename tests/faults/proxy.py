"""A TCP proxy that can be told to fail: between one process and one service.

    OPEN      everything passes
    CUT       connections are reset, new ones too
    STALL     nothing passes in either direction, and connections stay open (a partition)
    MUTE      requests pass, answers do not: the client cannot know whether its commit was done
    SLOW      everything passes, each piece 50 to 300 ms late, and at most 64 KiB at a time

toxiproxy can do the same, but is a Go program that would have to be installed; this is a page of asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any

HOST = "127.0.0.1"
PIECE = 64 * 1024
SLOW_SECONDS = (0.05, 0.3)
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Mode(Enum):
    OPEN = "open"
    CUT = "cut"
    STALL = "stall"
    MUTE = "mute"
    SLOW = "slow"


_TO_SERVER = frozenset({Mode.OPEN, Mode.MUTE, Mode.SLOW})
_TO_CLIENT = frozenset({Mode.OPEN, Mode.SLOW})


class Proxy:
    """Listens on a port of its own; `connect` opens a connection to the service.

    `watch` sees each piece before it passes, and whether it goes to the client.
    """

    def __init__(
        self,
        connect: Connect,
        watch: Callable[[bytes, bool], None] = lambda piece, to_client: None,
        *,
        standby: Connect | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """With `standby`, a second port leads to that server, and what is set holds for both; `tls` is for clients."""
        self._connect = connect
        self._standby = standby
        self._tls = tls
        self._watch = watch
        self._mode = Mode.OPEN
        self._changed = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self.ports: list[int] = []
        """Set by `start` and kept after `close`: a program may be started again while the proxy closes."""

    async def start(self) -> None:
        for connect in filter(None, (self._connect, self._standby)):
            server = await asyncio.start_server(partial(self._accept, connect), HOST, 0, ssl=self._tls)
            self._servers.append(server)
            self.ports.append(server.sockets[0].getsockname()[1])

    @property
    def port(self) -> int:
        """The port of the service itself."""
        return self.ports[0] if self.ports else 0

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, mode: Mode) -> None:
        """Changes what passes. Data that STALL and MUTE withheld passes in OPEN; data of reset connections is gone."""
        self._mode = mode
        if mode is Mode.CUT:
            self.reset()
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """Resets every connection that is open now."""
        for writer in list(self._open):
            _abort(writer)

    def _accept(self, connect: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        task = asyncio.ensure_future(self._serve(connect, reader, writer))
        self._tasks.add(task)

        def end(ended: asyncio.Task[None]) -> None:
            """Also for a task that was cancelled before it ran, by `close`."""
            self._tasks.discard(ended)
            self._end(writer)

        task.add_done_callback(end)

    async def _serve(self, connect: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            if self._mode is Mode.CUT:
                return
            answers, upstream = await connect()
            self._open.add(upstream)
            await _first(self._pump(reader, upstream, _TO_SERVER), self._pump(answers, writer, _TO_CLIENT))
        except OSError:
            pass
        finally:
            if upstream is not None:
                self._end(upstream)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, modes: frozenset[Mode]) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE):
                if self._mode is Mode.SLOW:
                    await asyncio.sleep(random.uniform(*SLOW_SECONDS))
                while self._mode not in modes:
                    await self._changed.wait()
                self._watch(piece, modes is _TO_CLIENT)
                sink.write(piece)
                await sink.drain()


async def _first(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Returns when one coroutine has ended; cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError, ValueError):  # closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    writer.transport.abort()
