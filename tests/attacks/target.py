"""The server under attack, as one caller sees it. Every answer is counted; only loopback addresses are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.attacks.projects import Projects
from tests.support.tenants import Tenant
from tests.support.waiting import until

PARALLEL = 16
"""Requests of an attack that run at once."""
ANSWER_SECONDS = 150.0
HELD_SECONDS = 90.0
"""How long a connection waits for an answer, or for its end, before the attack takes it for held."""
BEHIND_SECONDS = 0.3
"""How long a connection waits for what comes behind the head of an answer."""
RAW_BYTES = 65536

Json = dict[str, Any]


class Target:
    """Sends what an attack wants and counts the answers in `seen`. Make one for each attack, as a context manager.

    An answer is counted by its status. A 400 has its field or its code, too, as `400 input`, and a response that failed
    its code, as `failed server_error`. What is no answer is `closed`, `cut off` (by the server, of a client that does
    not read), `timed out` or `held` (a connection that the server should have ended).
    """

    def __init__(
        self, url: str, model: str, own: Tenant, projects: Projects, served_ports: Callable[[], set[int]]
    ) -> None:
        """`own` is the caller."""
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1", "attacks are for loopback addresses only"
        self.model, self.own, self.projects = model, own, projects
        self.host, self.port = parts.hostname, parts.port or 80
        self.served_ports = served_ports
        self.seen: Counter[str] = Counter()
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, verify=False, headers=own.headers)

    async def __aenter__(self) -> Target:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def send(self, method: str, path: str, **options: Any) -> Json:
        """Sends a request and counts its status. Returns the JSON object of its answer, or nothing."""
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TimeoutException:
            self.seen["timed out"] += 1
            return {}
        except httpx.TransportError:
            self.seen["closed"] += 1
            return {}
        body = _object(answer.content)
        self.seen[_name(answer.status_code, body)] += 1
        return body

    async def create(self, headers: dict[str, str] | None = None, **fields: Any) -> Json:
        """`POST /v1/responses`, with 4 tokens of output unless `fields` says more. None leaves a field out."""
        body = {"model": self.model, "input": "Hello!", "max_output_tokens": 4, **fields}
        kept = {name: value for name, value in body.items() if value is not None}
        return await self.send("POST", "/v1/responses", json=kept, headers=headers)

    async def body(self, body: bytes, path: str = "/v1/responses", **headers: str) -> Json:
        """Posts bytes as JSON."""
        return await self.send("POST", path, content=body, headers={"content-type": "application/json", **headers})

    async def repeat(self, count: int, act: Callable[[int], Awaitable[Any]], parallel: int = PARALLEL) -> None:
        """Calls `act` with 0 to count - 1, up to `parallel` at once."""
        gate = asyncio.Semaphore(parallel)

        async def one(number: int) -> None:
            async with gate:
                await act(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(one(number))

    # -- bytes on a connection -----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def connection(
        self, *, slow: bool = False
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A TCP connection. `slow`: with a receive buffer that is full at once."""
        plain = socket.socket()
        plain.setblocking(False)
        if slow:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await asyncio.get_running_loop().sock_connect(plain, (self.host, self.port))
        except BaseException:
            plain.close()
            raise
        reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def raw(self, *pieces: bytes) -> bytes:
        """Writes the pieces on a new connection until there is an answer, and counts it. Returns what came."""
        try:
            async with self.connection() as (reader, writer):
                answer = asyncio.ensure_future(self.read_answer(reader))
                for piece in pieces:
                    if answer.done():
                        break
                    writer.write(piece)
                    await _either(writer.drain(), answer)
                return await answer
        except ConnectionError:
            self.seen["closed"] += 1
            return b""

    async def read_answer(self, reader: asyncio.StreamReader) -> bytes:
        """Counts the first answer on a connection: its status, `closed`, or `held` if none comes in time."""
        data = b""
        try:
            data = await asyncio.wait_for(reader.read(RAW_BYTES), HELD_SECONDS)
            while len(data) < RAW_BYTES and (more := await asyncio.wait_for(reader.read(RAW_BYTES), BEHIND_SECONDS)):
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

    def request(self, line: str, *headers: str, body: bytes = b"") -> bytes:
        """A request for a connection, up to the end of `body`, which may be less than what its headers announce."""
        own = [f"{name}: {value}" for name, value in self.own.headers.items()]
        lines = [f"{line} HTTP/1.1", f"Host: {self.host}:{self.port}", *own, "Content-Type: application/json", *headers]
        return "".join(f"{each}\r\n" for each in lines).encode("latin-1") + b"\r\n" + body

    def stream(self, **fields: Any) -> bytes:
        """A request for a stream, for a connection."""
        data = json.dumps({"model": self.model, "stream": True, **fields}).encode()
        return self.request("POST /v1/responses", f"Content-Length: {len(data)}", body=data)


def _object(data: bytes | bytearray | None) -> Json:
    """The JSON object at the beginning of `data`, which more may follow."""
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
