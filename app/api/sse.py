"""Server-Sent Events. The frames come ready from the log, and a `View` says what of them a stream shows.

sse-starlette was considered. It encodes Python objects one by one, and has its own ping and shutdown. Our frames are
bytes, several go out in one write, and our rules for keep-alives and shutdown differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.rate_limits import headers_of
from app.api.view import NO_HEADERS, PLAIN, View
from app.bounds import Bound
from app.responses.read.reader import Events, Pulse

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


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


OpenEvents = Callable[[], Awaitable[Events]]
"""`ResponseReader.replay` or `ResponseService.start_stream` with its arguments."""


class EventStream(Response):
    """A stream that its reader can resume. It ends with the response, with the reader, or with this server.

    It takes a reader's place before it opens the events; errors until then go to the app's error handlers. When the
    server stops, the stream has neither a terminal event nor `[DONE]`: the reader resumes it with `starting_after`.
    """

    def __init__(
        self,
        open_events: OpenEvents,
        readers: Bound,
        project: str,
        shutdown: asyncio.Event,
        view: View = PLAIN,
    ) -> None:
        super().__init__()
        self._open_events: OpenEvents | None = open_events
        self._readers = readers
        self._project = project
        self._shutdown = shutdown
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.take(self._project):
            events = await self._opened()
            await send_start(send, headers_of(events.allowance))
            finished = await run_until(self._send(send, events), disconnected(receive), self._shutdown.wait())
            if not finished and self._shutdown.is_set():
                await send_end(send)

    async def _opened(self) -> Events:
        assert self._open_events is not None, "a stream is sent once"
        opening, self._open_events = self._open_events(), None  # It has the whole request in it.
        return await opening

    async def _send(self, send: Send, events: Events) -> None:
        async with aclosing(events.pulses) as pulses:
            await send_pulses(send, pulses, self._view)
