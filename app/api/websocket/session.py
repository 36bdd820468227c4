"""One client on one WebSocket, from the handshake to the end.

Its responses are foreground responses: closing the socket cancels them, as disconnecting does over HTTP. The session
reads all the time: only a reader sees pongs and the client's end. uvicorn sends the pings (`app/local/programs.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.access.caller import Caller
from app.aio import run_until
from app.api.authentication import check_scopes_now
from app.api.dependencies import Runtime
from app.api.errors import OK, api_error_of, crash
from app.api.foreground import detached_by
from app.api.holdings import BODY_BYTES, holdings_of
from app.api.middleware import CLIENT_LEFT, log_crash, note_access
from app.api.view import obfuscated
from app.api.websocket.messages import CREATE, error_event, read_event, request_of, server_events
from app.api.websocket.streams import PendingRequest, Stream, Streams
from app.bounds import BoundReached, Holding
from app.heavy import off_loop
from app.protocol.errors import ApiError, InvalidRequest, TooLarge, Unavailable
from app.protocol.events.chunk import LAST_OPENING_EVENT
from app.protocol.limits import LimitKind
from app.protocol.requests.bodies.request import ResponseRequest
from app.responses.read.reader import Pulse
from app.sizes import parsed_size
from app.store.rows import NOWHERE, Origin
from config.logging.context import about

_STOPPING = "The server is stopping; open another WebSocket and send the request there."
_CONNECT_AGAIN = "websocket_connection_limit_reached"
"""The code by which OpenAI has clients open another WebSocket."""
ROUTE = "/v1/responses"
RESTARTS = 1012
"""The code of a WebSocket that a stopping server closes: clients open another."""


class Session:
    """Reads the client's events and runs its requests.

    `run` returns when the client is gone, or when the server drains and no answer runs.
    """

    def __init__(self, socket: WebSocket, runtime: Runtime, caller: Caller, origin: Origin = NOWHERE) -> None:
        self._socket = socket
        self._responses = runtime.responses
        self._charges = runtime.charges
        self._shutdown = runtime.shutdown
        self._metrics = runtime.metrics
        self._max_bytes = runtime.settings.max_body_bytes
        self._omitted_tools = runtime.settings.omit_tools
        self._caller = caller
        self._project = caller.own_project
        self._origin = origin
        self._streams = Streams(self._max_bytes)
        self._parsing = asyncio.Lock()  # Others come between two of a socket's requests.

    async def run(self) -> None:
        try:
            if not await run_until(self._read_all(), self._drained()):
                await self._socket.close(RESTARTS)
        except WebSocketDisconnect:  # The client left while we sent.
            pass
        finally:
            await self._streams.close()

    async def _read_all(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            await self._read(message, holdings_of(self._socket.scope).take())
            del message  # The next one may come in an hour.

    async def _drained(self) -> None:
        """Returns once the server drains and no answer runs here."""
        await self._shutdown.begun.wait()
        await self._streams.idle()

    async def _read(self, message: Message, holding: Holding) -> None:
        """Adds the client's request to its stream, or sends an error. `holding` has the message's bytes."""
        stream_id, kind, begun = None, "invalid", perf_counter()
        with ExitStack() as held, about():
            held.enter_context(holding)
            try:
                frame = self._frame(message)
                holding.resize(len(frame))
                parsed = await off_loop(partial(parsed_size, frame), len(frame))
                with await holdings_of(self._socket.scope).wait_to_accept(parsed):
                    event = await off_loop(partial(read_event, frame, checked=False), len(frame))
                stream_id, kind = event.stream_id, CREATE
                if self._shutdown.begun.is_set():
                    raise Unavailable(_STOPPING, code=_CONNECT_AGAIN)
                if not self._streams.are_idle:  # What may wait counts, however small: it may be many.
                    holding.resize(len(frame) + BODY_BYTES)
                continued = event.fields.get("previous_response_id")
                known = continued if isinstance(continued, str) else None
                pending = PendingRequest(frame, len(frame), parsed, known, holding)
                self._streams.add(stream_id, pending, self._run_request)
                held.pop_all()  # The request gives it back.
            except (ApiError, BoundReached) as raised:
                error = api_error_of(raised)
                assert error is not None
                self._note(error.status, begun, kind)
                await self._socket.send_text(error_event(error, stream_id))

    def _note(self, status: int, begun: float, event: str) -> None:
        """A message has its answer: a line of the log, with the id of the socket's request."""
        note_access("WEBSOCKET", ROUTE, status, perf_counter() - begun, self._caller, event)

    def _frame(self, message: Message) -> bytes:
        text = message.get("text")
        if text is None:
            raise InvalidRequest("A text frame was expected, but got a binary one instead.", code="invalid_frame")
        frame: bytes = text.encode()
        if len(frame) > self._max_bytes:
            raise TooLarge(f"The frame is larger than {self._max_bytes} bytes.")
        return frame

    async def _run_request(self, stream: Stream, pending: PendingRequest) -> None:
        begun, status = perf_counter(), CLIENT_LEFT
        with about(request_id=self._origin.request_id):
            try:
                status = await self._respond_or_refuse(stream, pending)
            except WebSocketDisconnect:
                # Without this the stream's next request would begin before `run` sees that the client is gone.
                self._streams.drop_pending()
            finally:
                self._note(status, begun, CREATE)

    async def _respond_or_refuse(self, stream: Stream, pending: PendingRequest) -> int:
        """Returns the status that an HTTP answer would have."""
        try:
            await self._respond(stream, pending)
            return OK
        except WebSocketDisconnect:
            raise
        except Exception as raised:
            if (error := api_error_of(raised)) is None:
                log_crash(raised, self._socket.scope)
                error = crash()
            await self._refuse(stream, pending.continued, error)
            return error.status

    async def _refuse(self, stream: Stream, continued: str | None, error: ApiError) -> None:
        """Sends the error, and forgets a response that could not be continued.

        That is OpenAI's rule: the client then starts over with all of its items.
        """
        self._metrics.refused(error)
        if stream.last_unstored is not None and continued == stream.last_unstored:
            stream.last_unstored = None
        await self._socket.send_text(error_event(error, stream.stream_id))

    async def _request(self, pending: PendingRequest) -> ResponseRequest:
        pending.accepting = await holdings_of(self._socket.scope).wait_to_accept(pending.parsed_size)

        def request() -> ResponseRequest:
            return request_of(read_event(pending.frame).fields, self._omitted_tools)

        async with self._parsing:
            return replace(await off_loop(request, pending.size), size=pending.size)

    async def _respond(self, stream: Stream, pending: PendingRequest) -> None:
        check_scopes_now(self._socket.scope)
        await self._charges.take(self._project, LimitKind.REQUESTS_PER_MINUTE)
        request = await self._request(pending)
        obfuscation, unstored = request.obfuscation, request.fields.store is False
        attaching = self._responses.attach(self._project, request, unstored=self._streams.unstored, origin=self._origin)
        del request  # It may be large, and the response may take hours.
        async with attaching as response, detached_by(self._shutdown.over, response):
            pending.forget()
            for pulse in await response.beginning():
                await self._send(stream, pulse, obfuscation=obfuscation, unstored=unstored)
                del pulse  # The next one may come in an hour.
            async for pulse in response:
                await self._send(stream, pulse, obfuscation=obfuscation, unstored=unstored)
                del pulse  # The next one may come in an hour.

    async def _send(self, stream: Stream, pulse: Pulse, *, obfuscation: bool, unstored: bool) -> None:
        if pulse is None:  # Nothing was sent yet, and uvicorn sends pings.
            return
        if pulse.final and unstored:
            stream.last_unstored = pulse.response_id
        encoded = obfuscated(pulse.frames) if obfuscation else pulse.frames
        if pulse.first > pulse.last > LAST_OPENING_EVENT:
            # openai's accumulator for WebSockets (JavaScript) takes an empty output for the output so far.
            encoded = encoded.replace(b',"output":[]', b"")
        for text in server_events(encoded, stream.stream_id):
            await self._socket.send_text(text)
