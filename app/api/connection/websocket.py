"""WebSockets whose messages and pauses are bounded."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.api.connection.writing import BoundedWriting
from app.budget import OverBudget

_TRY_AGAIN_LATER = 1013


class BoundedWebSocket(BoundedWriting, WebSocketsSansIOProtocol):
    """A WebSocket whose unfinished message counts as a request's body does, and whose client must read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._message = self._limits.bodies.lease()
        self._continued_bytes = 0
        """Those of the unfinished message's frames behind its first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limits.websockets += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.websockets -= 1
        self._message.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            self._message.hold(self._unfinished_bytes() + len(data))
        except OverBudget:
            self._fail()
            return
        super().data_received(data)
        if self.queue.empty():  # else a whole message counts until the app takes it
            self._message.hold(self._unfinished_bytes())

    def handle_cont(self, event: Any) -> None:
        self._continued_bytes += len(event.data)
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        self._continued_bytes = 0

    async def receive(self) -> Any:
        message = await super().receive()
        self._message.hold(self._unfinished_bytes())
        return message

    def _unfinished_bytes(self) -> int:
        """What is in memory of a message without its last frame, and of a frame without its end."""
        first = len(self.frames[0]) if self.frames else 0
        return first + self._continued_bytes + len(self.conn.reader.buffer)

    def _fail(self) -> None:
        """1013: the client may try again later."""
        if not self.transport.is_closing():
            self.conn.fail(_TRY_AGAIN_LATER, "the server holds too many large requests")
            self.handle_parser_exception()
            self._write_deadline.start()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._write_deadline.start()
