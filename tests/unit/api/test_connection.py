"""Connections of the API on real sockets, with an app of three lines behind them: what is refused before the app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.api.connection import http
from app.api.connection.http import LINGER_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES, BoundedHttp
from app.api.connection.websocket import BoundedWebSocket
from app.api.connection.writing import WriteDeadline
from app.api.holdings import ANSWER_BYTES, BODY_BYTES, BOUNDS, ProcessBounds, holdings_of
from app.bounds import Bound
from tests.support.waiting import until

SLOW = 0.3
"""Seconds of the deadlines that a test waits for; no test measures them."""
HEAD = b"POST / HTTP/1.1\r\nhost: here\r\n"


TURNS = 20
"""Turns of the event loop: enough for the kernel to take what it can."""
LARGE = 24 * 1024 * 1024
"""More than the kernel takes for a client that reads nothing."""


class Server:
    """The server, its bounds, and what its app saw."""

    def __init__(self, bounds: ProcessBounds) -> None:
        self.bounds = bounds
        self.seen: list[str] = []
        self.port = 0
        self.state: Any = None
        self.go = asyncio.Event()
        """Lets the app answer requests with the header `x-wait`."""
        self.received = self.waits_for_client = 0
        self.ends_first = False

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            scope["state"][BOUNDS] = self.bounds
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        self.seen.append(scope["path"])
        if scope["type"] == "websocket":
            holdings_of(scope).project = scope["path"].strip("/") or None
            await (
                self._fill(receive, send)
                if scope["path"] == "/full"
                else self._talk(receive, send, wait=scope["path"] == "/wait")
            )
        elif scope["path"] == "/large":
            headers = [(b"content-length", str(LARGE).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"x" * LARGE})
        elif scope["path"] == "/pieces":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for piece in (b"one", b"two", b""):
                await send({"type": "http.response.body", "body": piece, "more_body": piece != b""})
        elif scope["path"] == "/endless":
            await self._pour(receive, send)
        else:
            if any(name == b"x-wait" for name, _ in scope["headers"]):
                await self.go.wait()
            await self._echo(receive, send)

    async def _talk(self, receive: Receive, send: Send, *, wait: bool) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            self.received = len(message["text"])
            if wait:
                await self.go.wait()
            await send({"type": "websocket.send", "text": str(len(message["text"]))})

    async def _fill(self, receive: Receive, send: Send) -> None:
        """Sends until a little is left that the kernel does not take; ends when the client closes, or at once."""
        await receive()
        await send({"type": "websocket.accept"})
        (connection,) = self.state.connections
        while not self.waits_for_client:
            await send({"type": "websocket.send", "text": "x" * 16384})
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self.waits_for_client = connection.transport.get_write_buffer_size()
        if not self.ends_first:
            await receive()

    async def _pour(self, receive: Receive, send: Send) -> None:
        """Sends for as long as the client is there."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(self._gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.seen.append("gone")

    async def _gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _echo(self, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.seen.append("gone")
                return
            size, more = size + len(message["body"]), message["more_body"]
        answer = str(size).encode()
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def bounds_of(total: int = 1 << 30, **bounds: Any) -> ProcessBounds:
    ample: dict[str, Any] = {
        "head_seconds": 60,
        "body_seconds": 60,
        "body_bytes": 1000,
        "write_seconds": 60,
        "connections": Bound("connections", 100),
        "accepting": Bound("accepted requests", total),
        "websockets": Bound("WebSockets", 0),
        "bodies": Bound("large requests", total, BODY_BYTES),
        "answers": Bound("answers", total, ANSWER_BYTES),
        "uploads": Bound("uploads", 100),
    }
    return ProcessBounds(**{**ample, **bounds})


@asynccontextmanager
async def serving(
    total: int = 1 << 30, connections: int = 100, *, shares: bool = False, **bounds: Any
) -> AsyncIterator[Server]:
    server = Server(bounds_of(total, connections=Bound("connections", connections, shares=shares), **bounds))
    config = uvicorn.Config(
        server.app,
        interface="asgi3",
        port=0,
        log_config=None,
        http=BoundedHttp,
        ws=BoundedWebSocket,
        lifespan="on",
        ws_per_message_deflate=False,
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running.serve())
    await until(lambda: running.started or task.done(), what="a started server")
    server.port, server.state = running.servers[0].sockets[0].getsockname()[1], running.server_state
    try:
        yield server
    finally:
        running.should_exit = running.force_exit = True
        await task


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self) -> tuple[int, Any, dict[str, str]]:
        """The next answer: status, body, headers."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = dict(line.lower().split(": ", 1) for line in head[1:-1])
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), orjson.loads(body), headers

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def code_of(client: Client, status: int) -> str:
    got, body, _ = await client.answer()
    assert got == status
    assert await client.is_closed()
    code: str = body["error"]["code"]
    return code


async def test_a_request_in_pieces_is_answered() -> None:
    async with serving() as server, client_of(server) as client:
        for piece in (b"PO", b"ST /a HTTP/1.1\r\nhos", b"t: here\r\ncontent-length: 3\r\n\r\na", b"b", b"c"):
            await client.send(piece)
            await asyncio.sleep(0)
        assert (await client.answer())[:2] == (200, 3)
        await client.send(HEAD + b"\r\n")
        assert (await client.answer())[:2] == (200, 0)
        size = 4 * MAX_HEAD_BYTES  # no large head
        await client.send(HEAD + f"content-length: {size}\r\n\r\n".encode() + b"a" * size)
        assert (await client.answer())[:2] == (200, size)


LONG_URL = b"GET /" + b"a" * MAX_URL_BYTES
LARGE_HEADS = {
    "a long URL": (LONG_URL + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
    "half a long URL": (LONG_URL, 414, "url_too_long"),
    **{
        name: (HEAD + head, 431, "headers_too_large")
        for name, head in (
            ("one header", b"x: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"),
            ("half a header", b"x: " + b"a" * MAX_HEAD_BYTES),
            ("half a name", b"a" * (MAX_HEAD_BYTES + 100)),
            ("many headers", b"x: 1\r\n" * (MAX_HEADERS + 1) + b"\r\n"),
        )
    },
}


async def test_large_heads_are_a_414_or_a_431_even_before_their_end_or_after_a_chunked_body() -> None:
    async with serving() as server:
        for name, (head, status, code) in LARGE_HEADS.items():
            async with client_of(server) as client:
                await client.send(head)
                assert await code_of(client, status) == code, name
        with pytest.raises(InvalidStatus) as caught:
            headers = {f"x-{n}": "a" * 8000 for n in range(9)}
            await connect(f"ws://127.0.0.1:{server.port}/", additional_headers=headers)
        assert caught.value.response.status_code == 431
        assert server.seen == []
        async with client_of(server) as client:
            await client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
            await until(lambda: server.seen == ["/"])
            await client.send(b"x: " + b"a" * (MAX_HEAD_BYTES + 1))
            assert await code_of(client, 431) == "headers_too_large"
            await until(lambda: server.seen == ["/", "gone"])


MESSAGES = b"POST /v1/messages?beta=true HTTP/1.1\r\nhost: here\r\n"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (MESSAGES + b"x: " + b"a" * MAX_HEAD_BYTES, 431),
        (HEAD + b"anthropic-version: 2023-06-01\r\nx: " + b"a" * MAX_HEAD_BYTES, 431),
        (b"POST /v1/messages?" + b"a" * MAX_URL_BYTES, 414),
        (MESSAGES + b"content-length: 10\r\n\r\na", 408),
        (MESSAGES + b": nothing\r\n\r\n", 400),
    ],
)
async def test_what_is_refused_has_the_form_of_the_api_that_its_caller_speaks(sent: bytes, expected: int) -> None:
    async with serving(body_seconds=SLOW) as server, client_of(server) as client:
        await client.send(sent)
        status, body, _ = await client.answer()
    assert (status, body["type"], body["error"]["type"]) == (expected, "error", "invalid_request_error")
    assert body["error"]["message"] and body["request_id"] is None


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, b"\r\n\r\n"])
async def test_a_head_that_does_not_end_is_a_408_or_closed(sent: bytes) -> None:
    async with serving(head_seconds=SLOW) as server, client_of(server) as client:
        await client.send(sent)
        if sent == HEAD:
            assert await code_of(client, 408) == "request_timeout"
        else:
            assert await client.is_closed()
        assert server.seen == []


async def test_a_body_or_a_second_head_that_does_not_end_is_a_408_and_the_app_sees_its_client_leave() -> None:
    async with serving(head_seconds=SLOW, body_seconds=SLOW) as server:
        async with client_of(server) as client:
            await client.send(HEAD + b"content-length: 10\r\n\r\na")
            assert await code_of(client, 408) == "request_timeout"
            await until(lambda: server.seen == ["/", "gone"])
        async with client_of(server) as client:
            await client.send(HEAD + b"\r\n")
            await client.answer()
            await client.send(HEAD)
            assert await code_of(client, 408) == "request_timeout"


async def test_the_body_of_a_file_has_the_deadline_for_each_so_many_bytes_of_it() -> None:
    async with serving(body_seconds=SLOW, body_bytes=10) as server, client_of(server) as client:
        await client.send(HEAD + b"content-length: 100\r\n\r\n")
        loop = asyncio.get_running_loop()
        end = loop.time() + 3 * SLOW
        sent = 0
        while loop.time() < end and sent < 90:
            await client.send(b"a" * 10)
            sent += 10
            await asyncio.sleep(SLOW / 3)
        await client.send(b"a" * (100 - sent))
        assert (await client.answer())[:2] == (200, 100)


@pytest.mark.parametrize("keep", [b"", b"connection: keep-alive\r\n"])
async def test_the_end_of_the_connection_ends_an_answer_to_http_1_0(keep: bytes) -> None:
    async with serving() as server, client_of(server) as client:
        await client.send(b"GET /pieces HTTP/1.0\r\nexpect: 100-continue\r\n" + keep + b"\r\n")
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"onetwo")
    assert b"transfer-encoding" not in head.lower()
    async with serving() as server, client_of(server) as client:
        await client.send(b"POST /a HTTP/1.0\r\ncontent-length: 2\r\n" + keep + b"\r\nab")
        assert (await client.answer())[:2] == (200, 2)
        assert await client.is_closed()


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with serving(write_seconds=SLOW) as server, client_of(server) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET /endless HTTP/1.1\r\n\r\n")
        await until(lambda: server.seen == ["/endless", "gone"])
        await until(lambda: not server.state.connections)


class SlowTransport:
    """Its client takes a byte between two looks at the buffer, until `left` bytes wait."""

    def __init__(self, waiting: int, left: int) -> None:
        self.waiting = waiting
        self.left = left
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        self.waiting = max(self.left, self.waiting - 1)
        return self.waiting

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("last", [False, True])
async def test_a_client_that_takes_something_each_time_is_cut_off_once_it_takes_nothing(last: bool) -> None:
    answers = Bound("answers", 1000)
    transport: Any = SlowTransport(100, left=50)
    deadline = WriteDeadline(transport, bounds_of(answers=answers, write_seconds=0.001))
    deadline.start(last=last)
    assert answers.held > 50
    await until(lambda: transport.is_aborted)
    assert transport.waiting == answers.held == 50
    deadline.end()
    assert answers.held == 0


async def test_a_slow_client_gets_all_of_its_answer_which_has_no_deadline() -> None:
    slow = dict.fromkeys(("head_seconds", "body_seconds", "write_seconds"), SLOW)
    async with serving(**slow) as server, client_of(server) as client:
        await client.send(b"GET /large HTTP/1.1\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        loop = asyncio.get_running_loop()
        begun, piece = loop.time(), LARGE // 24
        for _ in range(LARGE // piece):
            assert len(await client.reader.readexactly(piece)) == piece
            await asyncio.sleep(SLOW / 4)
        assert loop.time() - begun > 3 * SLOW


async def test_answers_that_nobody_takes_share_a_bound() -> None:
    async with serving(total=LARGE) as server, client_of(server) as first, client_of(server) as second:
        for number, client in enumerate((first, second), start=1):
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(b"GET /large HTTP/1.1\r\n\r\n")
            await until(lambda number=number: len(server.seen) == number)  # type: ignore[misc]
        await until(lambda: len(server.state.connections) == 1)
        first.writer.transport.resume_reading()  # type: ignore[attr-defined]
        head = await first.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert len(await first.reader.readexactly(LARGE)) == LARGE
        await until(lambda: server.bounds.answers.held == 0)


async def test_a_connection_beyond_the_limit_is_a_503_and_the_others_go_on() -> None:
    async with serving(connections=1) as server, client_of(server) as first:
        await until(lambda: len(server.state.connections) == 1)
        async with client_of(server) as second:
            status, body, headers = await second.answer()
            assert (status, body["error"]["code"], headers["retry-after"]) == (503, "too_many_connections", "1")
            assert await second.is_closed()
        await first.send(HEAD + b"\r\n")
        assert (await first.answer())[0] == 200


async def test_the_connections_of_one_address_leave_room_for_another() -> None:
    async with serving(connections=8, shares=True) as server, contextlib.AsyncExitStack() as stack:
        for _ in range(7):
            await stack.enter_async_context(client_of(server))
        await until(lambda: server.bounds.connections.held == 7)
        refused = await stack.enter_async_context(client_of(server))
        status, body, headers = await refused.answer()
        assert (status, body["error"]["code"], headers["retry-after"]) == (429, "too_many_connections", "1")
        assert await refused.is_closed()
        server.bounds.connections.take("address 192.0.2.1")


async def test_a_websocket_holds_what_its_http_connection_held() -> None:
    async with serving(connections=1) as server:
        async with connect(f"ws://127.0.0.1:{server.port}/"):
            assert server.bounds.connections.held == 1
        await until(lambda: server.bounds.connections.held == 0)


AHEAD = [HEAD + b"\r\n", HEAD + b"x: " + b"a" * MAX_HEAD_BYTES, HEAD + b"content-length: 9\r\n\r\n", b"no http"]
"""What a client may send before it has the answer to its first request."""


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("together", [True, False])
async def test_what_comes_before_an_answer_is_dropped_and_the_connection_ends(ahead: bytes, together: bool) -> None:
    first = HEAD + b"x-wait: 1\r\n\r\n"
    async with serving() as server, client_of(server) as client:
        if together:
            await client.send(first + 3 * ahead)
        else:
            await client.send(first)
            await until(lambda: server.seen == ["/"])
            await client.send(3 * ahead)
        await until(
            lambda: [each.cycle is None or each.cycle.keep_alive for each in server.state.connections] == [False]
        )
        server.go.set()
        status, body, headers = await client.answer()
        assert (status, body, headers["connection"]) == (200, 0, "close")
        assert await client.is_closed()
        assert server.seen == ["/"]


@pytest.mark.parametrize("size", [4 * 1024 * 1024, LINGER_BYTES - MAX_HEAD_BYTES])
async def test_a_client_that_sends_on_still_gets_the_reason(size: int) -> None:
    """Closing a connection with bytes in its buffer resets it, and the answer would be lost."""
    async with serving() as server:
        async with client_of(server) as client:
            await client.send(HEAD + b"x: " + b"a" * size)
            assert await code_of(client, 431) == "headers_too_large"
        await until(lambda: not server.state.connections)


async def test_a_refused_client_that_sends_without_end_is_cut_off() -> None:
    async with serving() as server, client_of(server) as client:
        await client.send(HEAD + b"x: " + b"a" * (LINGER_BYTES + 2 * MAX_HEAD_BYTES))
        await until(lambda: not server.state.connections)


async def test_a_refused_client_that_stays_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINGER_SECONDS", SLOW)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"no http\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        await until(lambda: not server.state.connections)
        writer.close()


CHUNKED = b"transfer-encoding: chunked"
NO_HTTP = [
    *(
        line + b"\r\nhost: here\r\n"
        for line in (b"\x16\x03\x01\x02", b"CONNECT here:22 HTTP/1.1", b"PRI * HTTP/2.0", b"GET / HTTP/9.9")
    ),
    *(
        HEAD + b"content-length: " + length + b"\r\n\r\n{}"
        for length in (b"-1", b"1e3", b"0x10", b"9" * 23, b"+2", b"2, 3", b"\xb2", b"")
    ),
    *(
        HEAD + CHUNKED + b"\r\n\r\n" + size + b"\r\n{}\r\n0\r\n\r\n"
        for size in (b"F" * 18, b"-1", b"0x2", b"", b"2 2", b"\xff")
    ),
    HEAD + b"x: \x7f\r\n",
]
TWO_LENGTHS = [
    (b"content-length: 4", b"content-length: 40"),
    (CHUNKED, b"content-length: 40"),
    (b"transfer-encoding: xchunked", b"content-length: 2"),
    (b"transfer-encoding : chunked", b"content-length: 2"),
    (CHUNKED + b", identity", b"content-length: 2"),
    (b" " + CHUNKED, b"content-length: 2"),
    (b"x: y\n" + CHUNKED, b"content-length: 2"),
    (b"transfer-encoding: \x0bchunked", b"content-length: 2"),
]
"""Two headers by which a proxy in front may see another end of the body, and so another request."""


async def test_bytes_that_are_no_http_or_have_two_readings_get_one_refusal_of_the_api() -> None:
    smuggled = b"\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: here\r\n\r\n"
    async with serving() as server:
        for sent in (*(each + b"\r\n" for each in NO_HTTP), *(HEAD + b"\r\n".join(e) + smuggled for e in TWO_LENGTHS)):
            async with client_of(server) as client:
                await client.send(sent)
                assert await code_of(client, 400) == "invalid_http", sent
        assert "/smuggled" not in server.seen


async def test_an_extension_of_a_chunk_is_bounded_and_a_body_that_waits_for_leave_to_come_has_it() -> None:
    async with serving() as server:
        async with client_of(server) as client:
            await client.send(HEAD + CHUNKED + b"\r\n\r\n2;x=" + b"a" * 4 * MAX_HEAD_BYTES)
            assert (await client.answer())[0] == 431
        async with client_of(server) as client:
            await client.send(HEAD + b"content-length: 1000\r\nexpect: 100-continue\r\n\r\n")
            assert await client.reader.readline() == b"HTTP/1.1 100 Continue\r\n"


@pytest.mark.parametrize(("projects", "holds", "sends"), [(("", "", ""), 900, 900), (("red", "red", "blue"), 800, 300)])
async def test_half_sent_messages_of_websockets_share_the_bound_of_bodies_and_leave_another_project_room(
    projects: tuple[str, str, str], holds: int, sends: int
) -> None:
    async def half() -> AsyncIterator[str]:
        yield "a" * (holds * 1024)
        await asyncio.Event().wait()

    async with serving(total=1 << 20) as server, contextlib.AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{server.port}"
        holder, greedy, other = [await stack.enter_async_context(connect(f"{url}/{each}")) for each in projects]
        holding = asyncio.create_task(holder.send(half()))
        await until(lambda: server.bounds.bodies.held > (holds - 100) * 1024)
        with pytest.raises(ConnectionClosed) as caught:
            await greedy.send("a" * (sends * 1024))
            await greedy.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1013
        passes = sends * 1024 if projects[2] else BODY_BYTES  # Small messages pass.
        await other.send("a" * passes)
        assert await other.recv() == str(passes)
        holding.cancel()
        await stack.aclose()
        await until(lambda: server.bounds.bodies.held == 0)


async def test_control_frames_within_a_message_do_not_count_as_bytes_of_bodies() -> None:
    async with serving() as server, connect(f"ws://127.0.0.1:{server.port}/") as client:

        async def pieces() -> AsyncIterator[str]:
            yield "a" * (2 * BODY_BYTES)
            for _ in range(2 * BODY_BYTES // 125):
                await client.pong(b"x" * 125)
            await (await client.ping())
            assert server.bounds.bodies.held == BODY_BYTES
            yield "a"

        await client.send(pieces())
        assert await client.recv() == str(2 * BODY_BYTES + 1)


@pytest.mark.parametrize("how", ["the app ends", "the client closes", "the client sends no more"])
async def test_a_websocket_that_closes_with_a_little_unread_is_cut_off(how: str) -> None:
    async with serving(write_seconds=SLOW) as server:
        server.ends_first = how == "the app ends"
        async with connect(f"ws://127.0.0.1:{server.port}/full", close_timeout=0) as client:
            client.transport.pause_reading()
            await until(lambda: server.waits_for_client > 0)
            (connection,) = server.state.connections
            assert connection.writable.is_set()  # So little that uvicorn goes on writing.
            if how == "the client closes":
                client.protocol.send_close()
                client.send_data()
            elif how == "the client sends no more":
                client.transport.write_eof()
            await until(lambda: not server.state.connections)
            client.transport.abort()
        assert server.bounds.connections.held == 0


async def test_a_message_counts_from_its_arrival_until_the_app_asks_for_the_next_one() -> None:
    size = 400 * 1024
    async with serving() as server, connect(f"ws://127.0.0.1:{server.port}/wait") as client:
        await client.send("a" * size)
        await until(lambda: server.received == size)
        assert server.bounds.bodies.held >= size - BODY_BYTES
        server.go.set()
        assert await client.recv() == str(size)
        await until(lambda: server.bounds.bodies.held == 0)
