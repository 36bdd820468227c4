"""The server under attack, as one caller sees it. Every answer is counted; only loopback addresses are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

PARALLEL = 16
"""Requests of an attack that run at once."""
ANSWER_SECONDS = 60.0
HELD_SECONDS = 3.0
"""How long a raw connection waits for an answer before the attack takes it for held."""
RAW_BYTES = 65536

_FIRST_ID = re.compile(rb'"id":"(resp_[0-9a-z_]+)"', re.IGNORECASE)

Json = dict[str, Any]


class Ended(Exception):
    """The server has ended what an attack did with it. The answer is counted already."""


class Target:
    """Sends what an attack wants and counts the answers in `seen`. Make one for each attack, as a context manager."""

    def __init__(self, url: str, model: str, *, redis_url: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1", "attacks are for loopback addresses only"
        self.url, self.model, self.redis_url = url, model, redis_url
        self.host, self.port = parts.hostname, parts.port or 80
        self.seen: Counter[str] = Counter()
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, verify=False)

    async def __aenter__(self) -> Target:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def send(self, method: str, path: str, **options: Any) -> Json:
        """Sends a request and counts its status.

        Returns the JSON object of its answer; of a stream, which is read to its end, the response's id; or nothing.
        """
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TimeoutException:
            self.seen["timed out"] += 1
            return {}
        except httpx.TransportError:
            self.seen["closed"] += 1
            return {}
        body: Json = {}
        with contextlib.suppress(ValueError):
            decoded = answer.json()
            body = decoded if isinstance(decoded, dict) else {}
        failed = answer.status_code == 200 and body.get("status") == "failed"
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            first, failed = _FIRST_ID.search(answer.content), b"event: response.failed" in answer.content
            body = {"id": first[1].decode()} if first else {}
        self.seen[f"{answer.status_code} failed" if failed else str(answer.status_code)] += 1
        return body

    async def create(self, **fields: Any) -> Json:
        """`POST /v1/responses`, with 4 tokens of output unless `fields` says more. None leaves a field out."""
        body = {"model": self.model, "input": "Hello!", "max_output_tokens": 4, **fields}
        kept = {name: value for name, value in body.items() if value is not None}
        return await self.send("POST", "/v1/responses", json=kept)

    async def body(self, body: bytes, path: str = "/v1/responses", **headers: str) -> Json:
        """Posts bytes as JSON."""
        sent = {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return await self.send("POST", path, content=body, headers=sent)

    async def repeat(self, count: int, act: Callable[[int], Awaitable[Any]], parallel: int = PARALLEL) -> None:
        """Calls `act` with 0 to count - 1, up to `parallel` at once."""
        gate = asyncio.Semaphore(parallel)

        async def one(number: int) -> None:
            async with gate:
                with contextlib.suppress(Ended):
                    await act(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(one(number))

    # -- bytes on a connection -----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def connection(self, *, slow: bool = False) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
        """A TCP connection. `slow`: with a receive buffer that is full at once."""
        plain = socket.socket()
        plain.setblocking(False)
        if slow:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await asyncio.get_running_loop().sock_connect(plain, (self.host, self.port))
            reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
        except BaseException:
            plain.close()
            raise
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def raw(self, *pieces: bytes, pause: float = 0.0, held_seconds: float = HELD_SECONDS) -> bytes:
        """Writes the pieces on a new connection and counts the first answer. Returns the beginning of what came."""
        try:
            async with self.connection() as (reader, writer):
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), held_seconds)
                    await asyncio.sleep(pause)
                return await self.read_answer(reader, held_seconds)
        except TimeoutError:
            self.seen["held"] += 1
        except ConnectionError:
            self.seen["closed"] += 1
        return b""

    async def read_answer(self, reader: asyncio.StreamReader, held_seconds: float = HELD_SECONDS) -> bytes:
        """Counts the first answer on a connection: its status, `closed`, or `held` if none comes in time."""
        data = b""
        try:
            data = await asyncio.wait_for(reader.read(RAW_BYTES), held_seconds)
            while data and len(data) < RAW_BYTES:  # answers to pipelined requests follow at once, or not at all
                more = await asyncio.wait_for(reader.read(RAW_BYTES), 0.3)
                if not more:
                    break
                data += more
        except TimeoutError:
            if not data:
                self.seen["held"] += 1
                return b""
        except ConnectionError:
            pass
        self.seen[data[9:12].decode("latin-1") if data.startswith(b"HTTP/1.1 ") else "closed"] += 1
        return data

    def head(self, line: str = "POST /v1/responses HTTP/1.1", *headers: str) -> bytes:
        """The beginning of a request, up to the last header; the blank line is the caller's to write."""
        lines = [line, f"Host: {self.host}:{self.port}", "Content-Type: application/json", *headers]
        return "".join(f"{each}\r\n" for each in lines).encode("latin-1")

    # -- WebSockets ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def websocket(self, **options: Any) -> AsyncIterator[ClientConnection]:
        """A WebSocket. Counts a refused handshake by its status, and a connection that breaks as closed.

        Raises Ended in both cases.
        """
        url = f"ws://{self.host}:{self.port}/v1/responses"
        try:
            async with connect(
                url, max_size=None, ping_interval=None, close_timeout=2, proxy=None, **options
            ) as opened:
                yield opened
        except InvalidStatus as refused:
            self.seen[str(refused.response.status_code)] += 1
            raise Ended from refused
        except (WebSocketException, ConnectionError) as broken:
            self.seen["closed"] += 1
            raise Ended from broken

    async def turn(self, opened: ClientConnection, **fields: Any) -> Json:
        """One `response.create`; counts the answer as HTTP would. Returns the last event."""
        request = {"type": "response.create", "model": self.model, "input": "Hello!", "max_output_tokens": 4, **fields}
        await opened.send(json.dumps(request))
        return await self.last_event(opened)

    async def last_event(self, opened: ClientConnection) -> Json:
        """Reads up to a final event or an error, and counts it. Raises Ended if none comes."""
        while True:
            try:
                event: Json = json.loads(await asyncio.wait_for(opened.recv(), ANSWER_SECONDS))
            except TimeoutError as late:
                self.seen["timed out"] += 1
                raise Ended from late
            kind = event["type"]
            if kind == "error" or kind in ("response.completed", "response.incomplete", "response.failed"):
                status = str(event.get("status", "")) if kind == "error" else "200"
                self.seen["200 failed" if kind == "response.failed" else status or "200 failed"] += 1
                return event
