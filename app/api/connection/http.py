"""HTTP connections whose heads, bodies, answers and pauses are bounded."""

from __future__ import annotations

import asyncio
from enum import Enum
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.connection.writing import BoundedWriting
from app.api.errors import RETRY_AFTER_SECONDS, status_of
from app.protocol.errors import ApiError, HeadTooLarge, RequestTimeout, Unavailable, UrlTooLong

MAX_HEAD_BYTES = 64 * 1024
"""The names and values of a request's headers together, with its URL."""
MAX_HEADERS = 128
MAX_URL_BYTES = 8192
MAX_PIPELINED = 16
"""Requests that a client may send before it has the answer to an earlier one."""


class _Phase(Enum):
    """What the server waits for. A deadline belongs to one phase."""

    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"


def _raw_answer(error: ApiError) -> bytes:
    """The whole answer to a request that never reaches the app."""
    status, body = HTTPStatus(status_of(error)), orjson.dumps(error.error.body())
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        head += f"retry-after: {RETRY_AFTER_SECONDS}\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


class BoundedHttp(BoundedWriting, HttpToolsProtocol):
    """An HTTP connection whose heads, bodies, answers and pauses are bounded.

    A request beyond a bound is answered with 408, 414, 431 or 503 and ends its connection. The app never sees it,
    except that a request whose body is late looks as if its client had left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = _Phase.HEAD
        self._deadline: asyncio.TimerHandle | None = None
        self._timed: _Phase | None = None
        self._head_bytes = self._raw_head_bytes = 0
        self._silent_bytes = 0
        self._heard = self._completed = False
        self._refused = False
        self._running: RequestResponseCycle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            message = f"The server has {self._limits.max_connections} connections, its limit; try again later."
            self._refuse(Unavailable(message, code="too_many_connections"))
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._heard = self._completed = False
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # It is a WebSocket now.
            self._stop_watching()
            return
        # The parser keeps a header until its value is complete, so bytes that it is silent about may be in memory.
        self._silent_bytes = 0 if self._heard else self._silent_bytes + len(data)
        if self._phase is _Phase.HEAD and not self._completed:
            self._raw_head_bytes += len(data)
        if not self._heard and self._phase is _Phase.NOTHING and self._is_idle():
            self._phase = _Phase.HEAD  # Empty lines before a request.
        self._check_head()
        self._watch()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._heard, self._phase = True, _Phase.HEAD
        self._head_bytes = self._raw_head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._heard = True
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also called for what follows a chunked body: that counts as its head does."""
        self._heard = True
        self._head_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._heard, self._phase = True, _Phase.BODY
        earlier = self.cycle
        self._check_head()
        if not self._refused:
            super().on_headers_complete()
            if self.pipeline:
                self._keep_running(earlier)

    def on_body(self, body: bytes) -> None:
        self._heard = True
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._heard, self._completed, self._phase = True, True, _Phase.NOTHING
        if not self._refused:
            super().on_message_complete()

    def _keep_running(self, earlier: RequestResponseCycle) -> None:
        """uvicorn forgets a request as soon as another one waits behind it, and never tells it that its client left."""
        if self._running is None or self._running.response_complete:
            self._running = earlier
        if len(self.pipeline) > MAX_PIPELINED:
            self._end()

    def handle_websocket_upgrade(self) -> None:
        if self._refused:
            return
        if self._limits.websockets >= self._limits.max_websockets:
            message = f"The server has {self._limits.max_websockets} WebSockets, its limit; try again later."
            self._refuse(Unavailable(message, code="too_many_websockets"))
        else:
            super().handle_websocket_upgrade()

    # Bounds

    def _check_head(self) -> None:
        if self._refused:
            return
        if len(getattr(self, "url", b"")) > MAX_URL_BYTES:
            self._refuse(UrlTooLong(f"The URL is longer than {MAX_URL_BYTES} bytes."))
        elif max(self._raw_head_bytes, self._head_bytes + self._silent_bytes) > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(f"The headers of the request are larger than {MAX_HEAD_BYTES} bytes."))
        elif self.headers is not None and len(self.headers) > MAX_HEADERS:
            self._refuse(HeadTooLarge(f"The request has more than {MAX_HEADERS} headers."))

    def _refuse(self, error: ApiError) -> None:
        """Answers if no earlier answer is under way, and ends the connection."""
        if not self._refused and (self.cycle is None or self._is_idle() or not self.cycle.response_started):
            self.transport.write(_raw_answer(error))
        self._end()

    def _end(self) -> None:
        self._refused = True
        self._stop_watching()
        self._write_deadline.start()
        self.transport.close()

    # Deadlines

    def _watch(self) -> None:
        """Sets the deadline of the phase, once. Most requests arrive whole and need none."""
        phase = _Phase.NOTHING if self._refused else self._phase
        if phase is self._timed:
            return
        self._stop_watching()
        self._timed = phase
        if phase is not _Phase.NOTHING:
            seconds = self._limits.head_seconds if phase is _Phase.HEAD else self._limits.body_seconds
            self._deadline = self.loop.call_later(seconds, self._on_deadline, seconds)

    def _stop_watching(self) -> None:
        self._timed = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self, seconds: float) -> None:
        if self._phase is _Phase.HEAD and not self._head_bytes:
            self._end()  # A client that has sent nothing expects nothing.
        else:
            self._refuse(RequestTimeout(f"The {self._phase.value} of the request took longer than {seconds:g} s."))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._write_deadline.start()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._write_deadline.start()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._write_deadline.start()
