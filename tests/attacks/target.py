"""The server under attack, as one caller sees it. Every answer is counted; only loopback addresses are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tests.attacks.projects import Projects
from tests.support.waiting import until

PARALLEL = 16
"""Requests of an attack that run at once."""
ANSWER_SECONDS = 150.0
HELD_SECONDS = 90.0
"""How long a connection waits for an answer, or for its end, before the attack takes it for held."""
PIPELINE_SECONDS = 0.3
"""How long a connection waits for an answer behind the first one."""
RAW_BYTES = 65536

_FAILURE = b"event: response.failed\ndata: "
_FIRST_ID = re.compile(rb'"id":"(resp_[0-9a-z_]+)"', re.IGNORECASE)

Json = dict[str, Any]


class Ended(Exception):
    """The server has ended what an attack did with it. The answer is counted already."""


class Target:
    """Sends what an attack wants and counts the answers in `seen`. Make one for each attack, as a context manager.

    An answer is counted by its status. A 400 has its field or its code, too, as `400 input`, and a response that failed
    its code, as `failed server_error`. What is no answer is `closed` (a client that sends on may miss the code of a
    WebSocket), `cut off` (by the server, of a client that does not read), `timed out` or `held` (a connection that the
    server should have ended).
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        secret: str | None = None,
        projects: Projects | None = None,
        served_ports: Callable[[], set[int]] = lambda: set(),
    ) -> None:
        """`secret` is the caller's API key; None: a stranger."""
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1", "attacks are for loopback addresses only"
        self.url, self.model, self._projects = url, model, projects
        self.host, self.port = parts.hostname, parts.port or 80
        self.served_ports = served_ports
        self.seen: Counter[str] = Counter()
        self._headers = {} if secret is None else bearer(secret)
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, verify=False, headers=self._headers)

    async def __aenter__(self) -> Target:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    @property
    def projects(self) -> Projects:
        assert self._projects is not None
        return self._projects

    def caller(self, secret: str | None, *, counted: bool = True) -> Target:
        """The same server as another caller sees it; what is not `counted` is no part of the attack."""
        other = Target(self.url, self.model, secret=secret, projects=self._projects, served_ports=self.served_ports)
        if counted:
            other.seen = self.seen
        return other

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
        body = _object(answer.content)
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            first, (_, failure, end) = self.first_id(answer.content), answer.content.rpartition(_FAILURE)
            body = _object(end)["response"] if failure else {"id": first} if first else {}
        self.seen[_name(answer.status_code, body)] += 1
        return body

    @staticmethod
    def first_id(stream: bytes) -> str:
        """The id of the response whose stream begins so; empty if there is none."""
        found = _FIRST_ID.search(stream)
        return found[1].decode() if found else ""

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

    async def _socket(self, *, slow: bool) -> socket.socket:
        """A connected socket. `slow`: with a receive buffer that is full at once."""
        plain = socket.socket()
        plain.setblocking(False)
        if slow:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await asyncio.get_running_loop().sock_connect(plain, (self.host, self.port))
        except BaseException:
            plain.close()
            raise
        return plain

    @contextlib.asynccontextmanager
    async def connection(
        self, *, slow: bool = False
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A TCP connection."""
        reader, writer = await asyncio.open_connection(sock=await self._socket(slow=slow), limit=4096)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    @staticmethod
    def port_of(writer: asyncio.StreamWriter) -> int:
        """The client's port of a connection."""
        return int(writer.get_extra_info("sockname")[1])

    async def raw(self, *pieces: bytes, pause: float = 0.0) -> bytes:
        """Writes the pieces on a new connection until there is an answer, and counts it. Returns what came.

        `pause` is the time between two pieces.
        """
        try:
            async with self.connection() as (reader, writer):
                answer = asyncio.ensure_future(self.read_answer(reader))
                for piece in pieces:
                    if answer.done():
                        break
                    writer.write(piece)
                    await _either(writer.drain(), answer)
                    if pause:
                        await asyncio.wait({answer}, timeout=pause)
                return await answer
        except ConnectionError:
            self.seen["closed"] += 1
            return b""

    async def read_answer(self, reader: asyncio.StreamReader) -> bytes:
        """Counts the first answer on a connection: its status, `closed`, or `held` if none comes in time."""
        data = b""
        try:
            data = await asyncio.wait_for(reader.read(RAW_BYTES), HELD_SECONDS)
            while data and len(data) < RAW_BYTES:  # answers to pipelined requests follow at once, or not at all
                more = await asyncio.wait_for(reader.read(RAW_BYTES), PIPELINE_SECONDS)
                if not more:
                    break
                data += more
        except TimeoutError:
            if not data:
                self.seen["held"] += 1
                return b""
        except ConnectionError:
            pass
        head, _, body = data.partition(b"\r\n\r\n")
        is_answer = head.startswith(b"HTTP/1.1 ")
        self.seen[_name(int(head[9:12]), _object(body)) if is_answer else "closed"] += 1
        return data

    async def cut_off(self, *ports: int) -> None:
        """Waits until the server has closed these connections, whose client does not read, and counts them."""
        with contextlib.suppress(AssertionError):
            await until(lambda: self.served_ports().isdisjoint(ports), HELD_SECONDS)
        left = len(self.served_ports().intersection(ports))
        self.seen.update({name: size for name, size in (("cut off", len(ports) - left), ("held", left)) if size})

    def head(self, line: str = "POST /v1/responses HTTP/1.1", *headers: str) -> bytes:
        """The beginning of a request, up to the last header; the blank line is the caller's to write."""
        own = [f"{name}: {value}" for name, value in self._headers.items()]
        lines = [line, f"Host: {self.host}:{self.port}", *own, "Content-Type: application/json", *headers]
        return "".join(f"{each}\r\n" for each in lines).encode("latin-1")

    def post(self, path: str, body: Json) -> bytes:
        """A whole request, for a connection."""
        data = json.dumps(body).encode()
        return self.head(f"POST {path} HTTP/1.1", f"Content-Length: {len(data)}") + b"\r\n" + data

    # -- WebSockets ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def websocket(
        self, *, slow: bool = False, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncIterator[ClientConnection]:
        """A WebSocket. Counts a refused handshake by its status, and a connection that breaks as closed.

        Raises Ended in both cases.
        """
        url = f"ws://{self.host}:{self.port}/v1/responses"
        try:
            plain = await self._socket(slow=slow)
            kept = {"max_size": None, "max_queue": 1 if slow else 16, "ping_interval": None, "close_timeout": 2}
            sent = {**self._headers, **(headers or {})}
            async with connect(url, sock=plain, proxy=None, additional_headers=sent, **kept, **options) as opened:
                yield opened
        except InvalidStatus as refused:
            self.seen[_name(refused.response.status_code, _object(refused.response.body))] += 1
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
            if event["type"] == "error":
                self.seen[_name(event.get("status", 500), event)] += 1
                return event
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                self.seen[_name(200, event["response"])] += 1
                return event


def bearer(secret: str) -> dict[str, str]:
    """The header of an API key."""
    return {"authorization": f"Bearer {secret}"}


def _object(data: bytes | bytearray | None) -> Json:
    """The JSON object at the beginning of `data`, which other answers may follow."""
    try:
        found, _ = json.JSONDecoder().raw_decode((data or b"").decode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _name(status: int, body: Json) -> str:
    """How `Target.seen` names an answer."""
    error = body.get("error") or {}
    if status == 400:
        where = re.split(r"[\[.]", error.get("param") or "")[0] or error.get("code")
        return f"400 {where}" if where else "400"
    if status == 200 and body.get("status") == "failed":
        return f"failed {error.get('code')}"
    return str(status)


async def _either(one: Coroutine[Any, Any, None], other: asyncio.Future[Any]) -> None:
    """Waits until one of the two is done. `one` is cancelled if it is not."""
    task = asyncio.ensure_future(one)
    await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ConnectionError):
        await task
