"""WebSockets whose messages and pauses are bounded."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.api.connection.writing import BoundedWriting
from app.api.holdings import holdings_of, known_holdings
from app.bounds import BoundReached

_TRY_AGAIN_LATER = 1013


class BoundedWebSocket(BoundedWriting, WebSocketsSansIOProtocol):  # type: ignore[misc]
    """A WebSocket whose unfinished message counts as a request's body does, and whose client must read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._message = self._bounds.bodies.take(None, 0)
        self._continued_bytes = 0
        """Bytes of the unfinished message's frames behind its first."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._message.release()
        if (holdings := known_holdings(getattr(self, "scope", None))) is not None:
            holdings.release_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._hold(self._unfinished_bytes() + len(data)):
            return
        super().data_received(data)
        if self.queue.empty():  # else a whole message counts until the app takes it
            self._message.resize(self._unfinished_bytes())

    def handle_cont(self, event: Any) -> None:
        self._continued_bytes += len(event.data)
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        super().send_receive_event_to_app()
        self._continued_bytes = 0

    async def receive(self) -> Any:
        holdings = holdings_of(self.scope)
        holdings.release_body()  # Of the message before, unless the app has taken it over.
        message = await super().receive()
        match message["type"]:
            case "websocket.connect":
                self._message.release()
                self._message.project = holdings.project  # The caller is known by now.
            case "websocket.receive":
                holdings.hand_over(self._message)
                self._message = self._bounds.bodies.take(self._message.project, 0)
                self._hold(self._unfinished_bytes())
        return message

    def _hold(self, size: int) -> bool:
        """Counts `size` bytes of messages that the app has not received. If there is no room, ends the connection."""
        try:
            self._message.resize(size)
        except BoundReached:
            self._fail()
            return False
        return True

    def _unfinished_bytes(self) -> int:
        """What is in memory of a message without its last frame, and of a frame without its end."""
        first = len(self.frames[0]) if self.frames else 0
        return first + self._continued_bytes + len(self.conn.reader.buffer)

    def _fail(self) -> None:
        """1013: the client may try again later."""
        if not self.transport.is_closing():
            self.conn.fail(_TRY_AGAIN_LATER, "the server holds too many large requests")
            self.handle_parser_exception()
            self._write_deadline.start(last=True)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._write_deadline.start(last=True)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The app is done: however uvicorn closes the connection, what is still to be written must be taken."""
        super().on_task_complete(task)
        if not self.disconnected:
            self._write_deadline.start(self.scope, last=True)

    def shutdown(self) -> None:
        """The session closes the WebSocket, once the answers that it runs have ended."""
        if not self.handshake_complete:
            super().shutdown()
