"""Lines that come one by one, for as long as their source has more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from starlette.types import Send

from app.api.sse import ReaderStream, send_end
from app.bounds import Bound

JSON_LINES = "application/x-ndjson"
BLANK_LINE_SECONDS = 12.0
"""An empty piece so long after the last line becomes a blank one: proxies close what is silent, and readers skip it."""

Lines = AsyncGenerator[bytes, None]


class LineStream(ReaderStream[Lines]):
    """A stream of lines."""

    def __init__(
        self,
        open_lines: Callable[[], Awaitable[Lines]],
        readers: Bound,
        project: str,
        shutdown: asyncio.Event,
        content_type: str = JSON_LINES,
    ) -> None:
        super().__init__(open_lines, readers, project, shutdown)
        self._content_type = content_type

    def _headers_of(self, source: Lines) -> Mapping[str, str]:
        return {"content-type": self._content_type}

    async def _send(self, send: Send, source: Lines) -> None:
        last = time.monotonic()
        async with aclosing(source):
            async for piece in source:
                if piece or time.monotonic() >= last + BLANK_LINE_SECONDS:
                    last = time.monotonic()
                    await send({"type": "http.response.body", "body": piece or b"\n", "more_body": True})
        await send_end(send)
