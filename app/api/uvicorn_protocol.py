"""A fast path for answers: uvicorn's HTTP protocol, which sends an answer's headers in one write with its body.

The plain way is uvicorn's own `httptools` protocol. It writes the headers at once, and uvloop sends every write at
once: two system calls for each answer, and the client wakes up twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_STATUS_LINE = b"HTTP/1.1 "


class HttpProtocol(HttpToolsProtocol):
    """For uvicorn's `--http`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]


class CoalescingTransport:
    """A transport that holds headers back until the next write, or until the next turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._headers = b""

    def write(self, data: bytes) -> None:
        if self._headers:
            data, self._headers = self._headers + data, b""
        elif data.startswith(_STATUS_LINE):
            self._headers = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._headers:
            headers, self._headers = self._headers, b""
            self._transport.write(headers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
