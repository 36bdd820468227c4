"""Server-Sent Events. The frames come ready from the log: nothing is parsed or built here, and padding is asked for.

sse-starlette was considered. It encodes Python objects one by one, and has its own ping and shutdown. Our frames are
bytes, several go out in one write, and our rules for keep-alives and shutdown differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.obfuscation import obfuscated
from app.api.shutdown import Shutdown
from app.protocol.events.frames import DONE, KEEPALIVE
from app.responses.read.reader import Pulse

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


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


async def send_at_once(send: Send, pulses: Iterable[Pulse], *, obfuscation: bool = False) -> None:
    """Sends `pulses` in one write."""
    if sent := b"".join(_as_bytes(pulse, obfuscation) for pulse in pulses):
        await send({"type": "http.response.body", "body": sent, "more_body": True})


async def send_pulses(send: Send, pulses: AsyncIterable[Pulse], *, obfuscation: bool = False) -> None:
    """Sends `pulses` as they come, then `[DONE]`. A write holds whole events only."""
    async for pulse in pulses:
        await send({"type": "http.response.body", "body": _as_bytes(pulse, obfuscation), "more_body": True})
        del pulse  # The next one may come in an hour.
    await send_end(send, DONE)


def _as_bytes(pulse: Pulse, obfuscation: bool) -> bytes:
    if pulse is None:
        return KEEPALIVE
    return obfuscated(pulse.frames) if obfuscation else pulse.frames


class EventStream(Response):
    """A stream that its reader can resume. It ends with the response, with the reader, or with this server.

    When the server stops, the stream has neither a terminal event nor `[DONE]`: the reader resumes it with
    `starting_after`.
    """

    def __init__(
        self,
        pulses: AsyncGenerator[Pulse, None],
        shutdown: Shutdown,
        *,
        obfuscation: bool = False,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        super().__init__()
        self._more = headers
        self._pulses = pulses
        self._shutdown = shutdown
        self._obfuscation = obfuscation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_start(send, self._more)
        finished = await run_until(self._send(send), disconnected(receive), self._shutdown.wait())
        if not finished and self._shutdown.is_set:
            await send_end(send)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pulses) as pulses:
            await send_pulses(send, pulses, obfuscation=self._obfuscation)
