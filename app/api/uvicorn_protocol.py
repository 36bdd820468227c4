"""uvicorn's HTTP, with the head of an answer in one write with what follows it.

uvicorn writes the head when it is told of it, and uvloop sends at once what is written: two system calls for each
answer, each of which wakes the client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class HttpProtocol(HttpToolsProtocol):
    """For uvicorn's `--http`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]


class CoalescingTransport:
    """A transport that holds a head back until the next write, or the loop's next turn where none comes before."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._send)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
