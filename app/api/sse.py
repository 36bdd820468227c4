"""Streams: Server-Sent Events, and lines. The frames of events come ready from the log, and a `View` says what of them
a stream shows.

sse-starlette was considered. It encodes Python objects one by one, and has its own ping and shutdown. Our frames are
bytes, several go out in one write, and our rules for keep-alives and shutdown differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.rate_limits import headers_of
from app.api.view import NO_HEADERS, PLAIN, View
from app.bounds import Bound
from app.responses.read.reader import Events, Pulse

Source = TypeVar("Source")

SSE = "text/event-stream; charset=utf-8"
HEADERS = {"content-type": SSE, "cache-control": "no-store", "x-accel-buffering": "no"}
JSON_LINES = "application/x-ndjson"
BLANK_LINE_SECONDS = 12.0
"""An empty piece so long after the last line becomes a blank one: proxies close what is silent, and readers skip it."""


async def disconnected(receive: Receive) -> None:
    """Returns once the client is gone. The body of the request must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_start(send: Send, more: Mapping[str, str] = NO_HEADERS) -> None:
    """Sends the headers of a stream."""
    headers = [(name.encode(), value.encode()) for name, value in {**HEADERS, **more}.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_end(send: Send, last: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def send_at_once(send: Send, pulses: Iterable[Pulse], view: View = PLAIN) -> None:
    """Sends `pulses` in one write."""
    await _send_frames(send, b"".join([await view.shown(pulse) for pulse in pulses]))


async def send_pulses(send: Send, pulses: AsyncIterable[Pulse], view: View = PLAIN) -> None:
    """Sends `pulses` as they come, then the view's end. A write holds whole events only."""
    async for pulse in pulses:
        await _send_frames(send, await view.shown(pulse))
        del pulse  # The next one may come in an hour.
    await send_end(send, view.end)


async def _send_frames(send: Send, frames: bytes) -> None:
    if frames:
        await send({"type": "http.response.body", "body": frames, "more_body": True})


class ReaderStream(Response, Generic[Source]):
    """A stream that ends with its source, with the reader, or with this server: then it lacks its end.

    It takes a reader's place before it opens the source; errors until then go to the app's error handlers.
    """

    def __init__(
        self, open_source: Callable[[], Awaitable[Source]], readers: Bound, project: str, shutdown: asyncio.Event
    ) -> None:
        super().__init__()
        self._open_source = open_source
        self._readers = readers
        self._project = project
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.take(self._project):
            opening = self._open_source()
            del self._open_source  # It has the whole request in it.
            source = await opening
            await send_start(send, self._headers_of(source))
            finished = await run_until(self._send(send, source), disconnected(receive), self._shutdown.wait())
            if not finished and self._shutdown.is_set():
                await send_end(send)

    def _headers_of(self, source: Source) -> Mapping[str, str]:
        """Returns headers that come with, or in place of, `HEADERS`."""
        raise NotImplementedError

    async def _send(self, send: Send, source: Source) -> None:
        raise NotImplementedError


OpenEvents = Callable[[], Awaitable[Events]]
"""`ResponseReader.replay` or `ResponseService.start_stream` with its arguments."""


class EventStream(ReaderStream[Events]):
    """A stream that its reader can resume.

    When the server stops, the stream has neither a terminal event nor `[DONE]`: the reader resumes it with
    `starting_after`.
    """

    def __init__(
        self, open_events: OpenEvents, readers: Bound, project: str, shutdown: asyncio.Event, view: View = PLAIN
    ) -> None:
        super().__init__(open_events, readers, project, shutdown)
        self._view = view

    def _headers_of(self, source: Events) -> Mapping[str, str]:
        return headers_of(source.allowance)

    async def _send(self, send: Send, source: Events) -> None:
        async with aclosing(source.pulses) as pulses:
            await send_pulses(send, pulses, self._view)


Lines = AsyncGenerator[bytes, None]


class LineStream(ReaderStream[Lines]):
    """A stream of lines that come one by one, for as long as their source has more."""

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
