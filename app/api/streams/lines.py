"""Lines of JSON that come one by one, for as long as their source has more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.sse import disconnected, send_end
from app.bounds import Bound

JSON_LINES = b"application/x-ndjson"
SSE = b"text/event-stream; charset=utf-8"
_HEADERS = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
SILENT_SECONDS = 12.0
"""An empty piece so long after the last line becomes a blank one: proxies close what is silent, and readers skip it."""

OpenLines = Callable[[], Awaitable[AsyncGenerator[bytes, None]]]


class LineStream(Response):
    """A stream of lines. It ends with its source, with the reader, or with this server: then it lacks its last line.

    It takes a reader's place before it opens the source; errors until then go to the app's error handlers.
    """

    def __init__(
        self,
        open_lines: OpenLines,
        readers: Bound,
        project: str,
        shutdown: asyncio.Event,
        content_type: bytes = JSON_LINES,
    ) -> None:
        super().__init__()
        self._open_lines = open_lines
        self._readers = readers
        self._project = project
        self._shutdown = shutdown
        self._start_headers = [(b"content-type", content_type), *_HEADERS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.take(self._project):
            lines = await self._open_lines()
            await send({"type": "http.response.start", "status": 200, "headers": self._start_headers})
            finished = await run_until(_send(send, lines), disconnected(receive), self._shutdown.wait())
            if not finished and self._shutdown.is_set():
                await send_end(send)


async def _send(send: Send, lines: AsyncGenerator[bytes, None]) -> None:
    last = time.monotonic()
    async with aclosing(lines):
        async for piece in lines:
            if piece or time.monotonic() >= last + SILENT_SECONDS:
                last = time.monotonic()
                await send({"type": "http.response.body", "body": piece or b"\n", "more_body": True})
    await send_end(send)
