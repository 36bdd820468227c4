"""One session with an MCP server, over streamable HTTP or over the stdin and stdout of a command.

One task opens, holds and closes the session: the SDK wants its cancel scopes left by the task that entered them.
So a caller can be cancelled at any moment, and the session still closes in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, TextIO

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from app.bounds import Bound, BoundReached, Holding
from app.heavy import PROJECT, off_loop
from app.sizes import is_large
from config.process import command_of
from config.server_kind import PROJECT_META, RENEWED_META, SERVER_PREFIXES
from config.tools import McpServer
from config.version import VERSION
from workers.mcp import stdio_supervisor
from workers.mcp.answers import shortened
from workers.mcp.errors import SessionGone, Unreachable

log = logging.getLogger("longhaul.tools")

SUPERVISOR = command_of(stdio_supervisor.__name__)
CLOSE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_LIST_PAGES = 20
ANSWERS = Bound("answers of MCP servers", 4 * MAX_MESSAGE_BYTES, unit="bytes of ")
"""Room for large answers, from their arrival until they are shortened. Without room they wait in their server."""
SESSIONS = Bound("sessions with MCP servers", 512, seconds=20.0)
"""Sessions of this worker. A response holds its own to its end, so nobody waits for long."""
COMMANDS = Bound("commands of MCP servers", 32, seconds=20.0)
"""Commands of this worker. Each is two processes, which a response holds to its end."""
PASSED_VARIABLES = (*SERVER_PREFIXES, "LONGHAUL_LOG_FORMAT", "LONGHAUL_LOG_LEVEL", "EXA_API_KEY")
"""A command gets the environment variables with these prefixes alone: it must not see DATABASE_URL and the like."""

_CLIENT = types.Implementation(name="longhaul", version=VERSION)
_CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_STATUSES: ContextVar[list[int]] = ContextVar("statuses")
"""The HTTP statuses of the answers to one call, which the library keeps to itself."""
_EVENT_END = re.compile(rb"\n\r?\n|\r\r")


class Session:
    """A session with `server`. `headers` are sent with each of its HTTP requests.

    `renewed`: an earlier session answered calls, and what it kept is lost. A built-in server is told, so that it tells
    the model.
    """

    def __init__(self, server: McpServer, headers: Mapping[str, str], *, renewed: bool = False) -> None:
        self._server = server
        self._headers = headers
        self._renewed = renewed
        self._close_requested = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name=f"mcp-{server.label}")

    @property
    def closed(self) -> bool:
        return self._task.done()

    async def list_tools(self) -> list[types.Tool]:
        """All tools of the server. Raises Unreachable, or MCPError if the server refuses."""
        client, tools, cursor = await self._connected_client(), list[types.Tool](), None
        for _ in range(MAX_LIST_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            tools += page.tools
            if (cursor := page.next_cursor) is None:
                break
        return tools

    async def call(
        self, tool: str, arguments: dict[str, Any], meta: Mapping[str, Any] | None = None
    ) -> types.CallToolResult:
        """Calls a tool once, with this in the call's `_meta`. If the caller is cancelled, so is the call on the server.

        Raises Unreachable, BoundReached or SessionGone if the call was not made, and MCPError if the server refused or
        went away.
        """
        client = await self._connected_client()
        statuses: list[int] = []
        _STATUSES.set(statuses)
        try:
            result = await self._send(client, tool, arguments, meta or {})
        except MCPError as error:
            if HTTPStatus.NOT_FOUND in statuses:
                raise SessionGone from None
            if error.code != types.HEADER_MISMATCH:
                raise
            # The server has not run the call: it wants headers that its list of tools names. Listing sets them.
            await self.list_tools()
            result = await self._send(client, tool, arguments, meta or {})
        if isinstance(result, types.InputRequiredResult):
            raise MCPError(types.INTERNAL_ERROR, "the tool asks for more input, which nobody here can give")
        return result

    async def close(self) -> None:
        """Ends the session, and the command behind it; by force after CLOSE_SECONDS. Never raises."""
        self._close_requested.set()
        if not self._client.done():
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        if not done:
            log.warning("MCP server %r does not close its session; cancelling it", self._server.label)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)

    async def _connected_client(self) -> Client:
        return await asyncio.shield(self._client)

    async def _send(
        self, client: Client, tool: str, arguments: dict[str, Any], sent: Mapping[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        # `client.call_tool` would list the tools first, and discard results that do not match their schemas.
        params, meta = types.CallToolRequestParams(name=tool, arguments=arguments), dict(sent)
        if self._server.kind != "mcp":
            if (project := PROJECT.get()) is not None:
                meta[PROJECT_META] = sha256(project.encode()).hexdigest()
            if self._renewed:
                meta[RENEWED_META] = True
        request = types.CallToolRequest(params=params.model_copy(update={"meta": meta or None}))
        return await client.session.send_request(request, _CALL_RESULT)

    async def _hold(self) -> None:
        """Opens the session, and keeps it open until `close`."""
        failure: Exception = Unreachable(self._server.label)
        try:
            async with self._open() as client:
                self._client.set_result(client)
                await self._close_requested.wait()
        except BoundReached as error:
            failure = error
        except Exception as error:
            # The types alone: the text may quote arguments.
            log.info("MCP server %r: %s", self._server.label, ", ".join(sorted(_type_names(error))))
        finally:
            if not self._client.done():
                self._client.set_exception(failure)
                self._client.exception()  # marks it as retrieved: the callers may all have been cancelled

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            stack.enter_context(await SESSIONS.wait(PROJECT.get()))
            if self._server.url is not None:
                http = await stack.enter_async_context(_http_client(self._headers))
                url = self._server.url
                transport = streamable_http_client(url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES)
            else:
                stack.enter_context(await COMMANDS.wait(PROJECT.get()))
                # What a command writes to stderr may quote arguments.
                stderr = sys.stderr if log.isEnabledFor(logging.DEBUG) else stack.enter_context(_devnull())
                transport = stdio_client(_parameters(self._server.command or ()), stderr)
            yield await stack.enter_async_context(Client(transport, client_info=_CLIENT, cache=None))


def _http_client(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    async def watch(response: httpx2.Response) -> None:
        if MCP_SESSION_ID in response.request.headers:
            _STATUSES.get([]).append(response.status_code)
        response.stream = _Answer(response)

    # No read timeout: the toolbox limits the whole call.
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
    plain = {"Accept-Encoding": "identity", **headers}  # else an answer could be a thousand times as large as its bytes
    return httpx2.AsyncClient(headers=plain, timeout=timeout, event_hooks={"response": [watch]})


class _Answer(httpx2.AsyncByteStream):
    """A body, or each event of a stream, with its large messages shortened before the library reads them on the loop.
    It ends with an error where one has more than MAX_MESSAGE_BYTES."""

    def __init__(self, response: httpx2.Response) -> None:
        self._stream: Any = response.stream
        self._is_encoded = response.headers.get("content-encoding", "identity") != "identity"
        self._has_events = response.headers.get("content-type", "").startswith("text/event-stream")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_encoded:
            raise httpx2.StreamError("an encoding that was not asked for")
        held = bytearray()
        with Holding(ANSWERS, PROJECT.get()) as room:
            async for part in self._stream:
                held += part
                if len(held) > MAX_MESSAGE_BYTES:
                    raise httpx2.StreamError(f"more than {MAX_MESSAGE_BYTES} bytes")
                if is_large(len(held)) and not room.counted:
                    await room.wait(MAX_MESSAGE_BYTES)
                if self._has_events and (ends := [*_EVENT_END.finditer(held, max(0, len(held) - len(part) - 2))]):
                    whole, held = held[: ends[-1].end()], held[ends[-1].end() :]
                    events = await _read(whole, _shortened_events)
                    room.release()
                    yield events
            rest = await _read(held, shortened)
        yield rest

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _read(data: bytearray, shorten: Callable[[bytearray], bytes | bytearray]) -> bytes:
    return bytes(await off_loop(partial(shorten, data), len(data)) if is_large(len(data)) else data)


def _shortened_events(events: bytearray) -> bytes:
    """Server-sent events whose data are messages."""
    made = []
    for event in _EVENT_END.split(events)[:-1]:
        if is_large(len(event)):
            lines = event.splitlines()
            message = shortened(b"\n".join(line[5:] for line in lines if line.startswith(b"data:")))
            data = b"data:" + message.replace(b"\n", b"\ndata:")
            event = b"\n".join([*(line for line in lines if not line.startswith(b"data:")), data])
        made.append(event + b"\n\n")
    return b"".join(made)


def _parameters(command: Sequence[str]) -> StdioServerParameters:
    """The command, run by its supervisor. Raises FileNotFoundError."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(command[0])
    env = {name: value for name, value in os.environ.items() if name.startswith(PASSED_VARIABLES)}
    program, *options = SUPERVISOR
    return StdioServerParameters(
        command=program, args=[*options, str(os.getpid()), str(MAX_MESSAGE_BYTES), *command], env=env
    )


def _devnull() -> TextIO:
    return Path(os.devnull).open("w")


def _type_names(error: BaseException) -> set[str]:
    if isinstance(error, BaseExceptionGroup):
        return {name for inner in error.exceptions for name in _type_names(inner)}
    return {type(error).__name__}
