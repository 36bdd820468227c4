"""HTTP connections whose heads, bodies, answers and pauses are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.connection.writing import BoundedWriting
from app.api.errors import bound_error, error_answer, error_headers
from app.api.holdings import known_holdings
from app.api.shutdown import END_SECONDS
from app.bounds import BoundReached, UnknownAddress
from app.protocol.errors import ApiError, HeadTooLarge, InvalidRequest, RequestTimeout, UrlTooLong

MAX_HEAD_BYTES = 64 * 1024
"""The names and values of a request's headers together, with its URL."""
MAX_HEADERS = 128
MAX_URL_BYTES = 8192
LINGER_BYTES = 16 * 1024 * 1024
"""What a refused client may still send, and the server drops: bytes that nobody took would reset the connection."""
LAST_REQUEST_SECONDS = 1.0
"""How long an idle connection of a server that stops may bring one more request."""
LINGER_SECONDS = 2.0
"""How long the server waits for a refused client to read its answer and close the connection."""


class _Phase(Enum):
    """What the server waits for. A deadline belongs to one phase."""

    HEAD = "head"
    BODY = "body"
    NOTHING = "nothing"


def _raw_answer(error: ApiError, scope: Mapping[str, Any]) -> bytes:
    """The whole answer to a request that never reaches the app; `scope` has what is known of it."""
    status, body, own = error_answer(error, scope)
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in {**error_headers(error), **own}.items())
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


def _address_of(transport: asyncio.Transport) -> UnknownAddress | None:
    peer = transport.get_extra_info("peername")
    return UnknownAddress(f"address {peer[0]}") if isinstance(peer, tuple) else None


def _tell_that_client_left(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()


async def _without_chunks(
    cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answers a client of HTTP/1.0, which knows no chunks: the end of the connection ends a body of unknown length."""
    cycle.waiting_for_100_continue = False
    has_length = True

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = None if has_length else False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plain)


class BoundedHttp(BoundedWriting, HttpToolsProtocol):
    """An HTTP connection whose heads, bodies, answers and pauses are bounded.

    A request beyond a bound is answered with 400, 408, 414, 431 or 503 and ends its connection. The app never sees it,
    except that a request whose body is late or no HTTP looks as if its client had left. What comes before the answer to
    an earlier request is dropped, and the connection ends after that answer: no client that people use pipelines.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = _Phase.HEAD
        self._deadline: asyncio.TimerHandle | None = None
        self._timed: _Phase | None = None
        self._head_bytes = self._raw_head_bytes = 0
        self._silent_bytes = self._body_bytes = 0
        self._heard = self._completed = False
        self._refused = self._is_last = False
        self._dropped_bytes = 0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._place.give(_address_of(transport))
            self._place.resize(1)
        except BoundReached as reached:
            self._refuse(bound_error(reached))
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._drop(data)
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
        if not self._refused:
            self._watch()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # The parser's callbacks

    def on_message_begin(self) -> None:
        if not self._is_idle():
            self._end_after_answer()
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
        self._heard = True
        self._check_head()
        if not self._refused:
            self._phase, self._body_bytes = _Phase.BODY, 0
            super().on_headers_complete()
            if self._is_last:
                self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, partial(_without_chunks, cycle, app) if is_old else app)

    def on_body(self, body: bytes) -> None:
        self._heard = True
        if not self._refused:
            self._body_bytes += len(body)
            if self._body_bytes >= self._bounds.body_bytes:  # A file: no other body has so many.
                self._body_bytes = 0
                self._timed = None
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._heard, self._completed, self._phase = True, True, _Phase.NOTHING
        if not self._refused:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        if not self._refused:
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

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for bytes that are no HTTP."""
        self._refuse(InvalidRequest("The request is not valid HTTP/1.1.", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Ends the connection, with an answer unless that would be taken for the one to an earlier request."""
        if self._refused:
            return
        if self._is_idle() or (self._phase is _Phase.BODY and not self.cycle.response_started):
            self.transport.write(_raw_answer(error, self._known()))
            self._linger()
        elif self._phase is _Phase.BODY:
            self._end()
        else:
            self._end_after_answer()

    def _known(self) -> Mapping[str, Any]:
        """What is known of the request: its path, before uvicorn reads it of the URL, and its headers so far."""
        scope: Any = self.scope  # None before the first request
        return {"path": getattr(self, "url", b"").decode("latin-1"), **(scope or {})}

    def _end_after_answer(self) -> None:
        """Takes no further request, and closes the connection after the answer that is under way."""
        self._refused = True
        self._stop_watching()
        self.cycle.keep_alive = False

    def _linger(self) -> None:
        """Waits until the client has read its answer and closes the connection, unless it got no place."""
        if not self._place.counted or not self.transport.can_write_eof():
            self._end()
            return
        self._refused = True
        self._stop_watching()
        self._write_deadline.start(last=True)
        if not self._is_idle():
            _tell_that_client_left(self.cycle)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _drop(self, data: bytes) -> None:
        self._dropped_bytes += len(data)
        if self._dropped_bytes > LINGER_BYTES:
            self._end()

    def _end(self) -> None:
        self._refused = True
        self._stop_watching()
        self._write_deadline.start(last=True)
        self.transport.close()

    # Deadlines

    def _watch(self) -> None:
        """Sets the deadline of the phase, once. Most requests arrive whole and need none."""
        if self._phase is self._timed:
            return
        self._stop_watching()
        self._timed = self._phase
        if self._phase is not _Phase.NOTHING:
            seconds = self._bounds.head_seconds if self._phase is _Phase.HEAD else self._bounds.body_seconds
            self._deadline = self.loop.call_later(seconds, self._on_deadline, seconds)

    def _stop_watching(self) -> None:
        self._timed = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self, seconds: float) -> None:
        if self._phase is _Phase.HEAD and not self._head_bytes and self._is_idle():
            self._end()  # A client that has sent nothing expects nothing.
        else:
            self._refuse(RequestTimeout(f"The {self._phase.value} of the request took longer than {seconds:g} s."))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._write_deadline.start(last=True)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._write_deadline.start(last=True)

    # The server stops

    def shutdown(self) -> None:
        """The connection ends after its answer.

        An idle one may have a request under way, which closing it would lose: that one is still answered.
        """
        self._is_last = True
        if self._is_idle():
            self.loop.call_later(LAST_REQUEST_SECONDS, self._end_if_idle)
        else:
            super().shutdown()
        self.loop.call_later(END_SECONDS, self._end_unless_foreground)

    def _end_if_idle(self) -> None:
        if self._is_idle():
            self._end()

    def _end_unless_foreground(self) -> None:
        """Only foreground answers have more time."""
        holdings = known_holdings(None if self.cycle is None else self.cycle.scope)
        if holdings is None or not holdings.is_foreground:
            self.transport.abort()
