"""One client on one WebSocket, from the handshake to the end.

Its responses are foreground responses: closing the socket cancels them, as disconnecting does over HTTP. The session
reads all the time: only a reader sees pongs and the client's end. uvicorn sends the pings (`app/local/programs.py`).
"""

from __future__ import annotations

from functools import partial

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.aio import HEAVY
from app.api.dependencies import Runtime
from app.api.errors import api_error_of, crash
from app.api.middleware import log_crash
from app.api.obfuscation import obfuscated
from app.api.websocket.messages import Kind, error_event, read_event, request_of, server_events, steer_refused
from app.api.websocket.streams import PendingRequest, Stream, Streams
from app.budget import Budget, OverBudget
from app.protocol.errors import ApiError, InvalidRequest, TooLarge
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.types import Json
from app.responses.read.reader import Pulse
from app.sizes import is_large


class Session:
    """Reads the client's events and runs its requests. `run` returns when the client is gone."""

    def __init__(self, socket: WebSocket, runtime: Runtime, project: str, api_key_id: str | None = None) -> None:
        self._socket = socket
        self._responses = runtime.responses
        self._bodies: Budget = socket.state.limits.bodies
        self._max_bytes = runtime.settings.max_body_bytes
        self._omitted_tools = runtime.settings.omit_tools
        self._project = project
        self._api_key_id = api_key_id
        self._streams = Streams(self._max_bytes)

    async def run(self) -> None:
        try:
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                await self._read(message)
        except WebSocketDisconnect:  # The client left while we sent.
            pass
        finally:
            await self._streams.close()

    async def _read(self, message: Message) -> None:
        """Adds the client's request to its stream, or sends an error."""
        stream_id = None
        try:
            frame = self._frame(message)
            read = partial(read_event, frame)
            event = await HEAVY.run(read) if is_large(len(frame)) else read()
            stream_id = event.stream_id
            if event.kind is Kind.STEER:
                await self._socket.send_text(steer_refused(event.fields))
            else:
                self._add(stream_id, event.fields, len(frame))
        except (ApiError, OverBudget) as raised:
            error = api_error_of(raised)
            assert error is not None
            await self._socket.send_text(error_event(error, stream_id))

    def _add(self, stream_id: str | None, fields: Json, size: int) -> None:
        """Raises OverBudget, and what `Streams.add` raises."""
        lease = self._bodies.lease()
        lease.hold(size)
        try:
            self._streams.add(stream_id, PendingRequest(fields, size, lease), self._run_request)
        except ApiError:
            lease.release()
            raise

    def _frame(self, message: Message) -> bytes:
        text = message.get("text")
        if text is None:
            raise InvalidRequest("A text frame was expected, but got a binary one instead.", code="invalid_frame")
        frame: bytes = text.encode()
        if len(frame) > self._max_bytes:
            raise TooLarge(f"The frame is larger than {self._max_bytes} bytes.")
        return frame

    async def _run_request(self, stream: Stream, pending: PendingRequest) -> None:
        try:
            await self._respond_or_refuse(stream, pending)
        except WebSocketDisconnect:
            # Without this the stream's next request would begin before `run` sees that the client is gone.
            self._streams.drop_pending()

    async def _respond_or_refuse(self, stream: Stream, pending: PendingRequest) -> None:
        continued = pending.fields.get("previous_response_id")
        try:
            await self._respond(stream, pending)
        except WebSocketDisconnect:
            raise
        except Exception as raised:
            if (error := api_error_of(raised)) is None:
                log_crash(raised, self._socket.scope)
                error = crash()
            await self._refuse(stream, continued, error)

    async def _refuse(self, stream: Stream, continued: object, error: ApiError) -> None:
        """Sends the error, and forgets a response that could not be continued.

        That is OpenAI's rule: the client then starts over with all of its items.
        """
        if stream.last_unstored is not None and continued == stream.last_unstored:
            stream.last_unstored = None
        await self._socket.send_text(error_event(error, stream.stream_id))

    async def _request(self, pending: PendingRequest) -> ResponseRequest:
        as_request = partial(request_of, pending.fields, self._omitted_tools)
        return await HEAVY.run(as_request) if is_large(pending.size) else as_request()

    async def _respond(self, stream: Stream, pending: PendingRequest) -> None:
        request = await self._request(pending)
        obfuscation, unstored = request.obfuscation, request.fields.store is False
        attaching = self._responses.attach(
            self._project, request, unstored=self._streams.unstored, api_key_id=self._api_key_id
        )
        del request  # It may be large, and the response may take hours.
        async with attaching as response:
            pending.forget()
            for pulse in await response.beginning():
                await self._send(stream, pulse, obfuscation=obfuscation, unstored=unstored)
            async for pulse in response:
                await self._send(stream, pulse, obfuscation=obfuscation, unstored=unstored)

    async def _send(self, stream: Stream, pulse: Pulse, *, obfuscation: bool, unstored: bool) -> None:
        if pulse is None:  # A keep-alive is due, and uvicorn sends those.
            return
        if pulse.final and unstored:
            stream.last_unstored = pulse.response_id
        encoded = obfuscated(pulse.frames) if obfuscation else pulse.frames
        for text in server_events(encoded, stream.stream_id):
            await self._socket.send_text(text)
