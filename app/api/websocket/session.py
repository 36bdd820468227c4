"""One client on one WebSocket, from the handshake to the end.

Its responses are foreground responses: closing the socket cancels what is in progress, as leaving does over HTTP.
It reads all the time: that is how pongs and the client's end are seen. uvicorn pings (`app/local/programs.py`).
"""

from __future__ import annotations

import asyncio

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.api.dependencies import Runtime
from app.api.errors import crash, refusal_of
from app.api.middleware import log_crash
from app.api.websocket.messages import Kind, error_event, read_event, request_of, server_events, steer_refused
from app.api.websocket.streams import Lane, Lanes, Waiting
from app.protocol.errors import ApiError, InvalidRequest, TooLarge
from app.protocol.events.chunk import Chunk
from app.protocol.requests.request import ResponseRequest
from app.protocol.types import Json

_LARGE_BYTES = 256 * 1024


class Session:
    """`run` returns when the client is gone."""

    def __init__(self, socket: WebSocket, runtime: Runtime, project: str) -> None:
        self._socket = socket
        self._service = runtime.responses
        self._max_bytes = runtime.settings.max_body_bytes
        self._project = project
        self._lanes = Lanes(self._answer, self._max_bytes)

    async def run(self) -> None:
        try:
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                await self._take(message)
        except WebSocketDisconnect:  # it left while we sent
            pass
        finally:
            await self._lanes.close()

    async def _take(self, message: Message) -> None:
        lane = None
        try:
            frame = self._frame(message)
            event = await asyncio.to_thread(read_event, frame) if len(frame) >= _LARGE_BYTES else read_event(frame)
            lane = event.lane
            if event.kind is Kind.STEER:
                await self._socket.send_text(steer_refused(event.fields))
            else:
                self._lanes.add(lane, Waiting(event.fields, len(frame)))
        except ApiError as refusal:
            await self._socket.send_text(error_event(refusal, lane))

    def _frame(self, message: Message) -> bytes:
        text = message.get("text")
        if text is None:
            raise InvalidRequest("A text frame was expected, but got a binary one instead.", code="invalid_frame")
        frame: bytes = text.encode()
        if len(frame) > self._max_bytes:
            raise TooLarge(f"The frame is larger than {self._max_bytes} bytes.")
        return frame

    async def _answer(self, lane: Lane, waiting: Waiting) -> None:
        """One request, in its turn."""
        try:
            await self._answer_or_refuse(lane, waiting)
        except WebSocketDisconnect:
            self._lanes.forget()  # before `run` sees that the client is gone, the next one would begin

    async def _answer_or_refuse(self, lane: Lane, waiting: Waiting) -> None:
        fields, large = waiting.fields, waiting.size >= _LARGE_BYTES
        try:
            await self._respond(lane, await asyncio.to_thread(request_of, fields) if large else request_of(fields))
        except WebSocketDisconnect:
            raise
        except Exception as error:
            if (refusal := refusal_of(error)) is None:
                log_crash(error, self._socket.scope)
                refusal = crash()
            await self._refuse(lane, fields, refusal)

    async def _refuse(self, lane: Lane, fields: Json, refusal: ApiError) -> None:
        """What could not be continued is forgotten: OpenAI's rule, so that its client starts again with all of it."""
        if lane.latest is not None and fields.get("previous_response_id") == lane.latest:
            lane.latest = None
        await self._socket.send_text(error_event(refusal, lane.name))

    async def _respond(self, lane: Lane, request: ResponseRequest) -> None:
        known = self._lanes.latest
        async with self._service.attach(self._project, request, unstored=known) as foreground:
            for pulse in await foreground.beginning():
                await self._send(lane, request, pulse)
            async for pulse in foreground:
                await self._send(lane, request, pulse)

    async def _send(self, lane: Lane, request: ResponseRequest, pulse: Chunk | None) -> None:
        if pulse is None:  # time for a keep-alive, which is uvicorn's to send
            return
        if pulse.final and request.fields.store is False:
            lane.latest = pulse.response_id
        for text in server_events(pulse.frames, lane.name):
            await self._socket.send_text(text)
