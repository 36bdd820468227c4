"""One MCP session, over streamable HTTP or with a command's stdin and stdout.

A task of its own opens, holds and closes it (the SDK's cancel scopes want one task for all three), so whoever calls may
be cancelled at any moment: the session is told, and goes on or is closed in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from config.tools import McpServer

log = logging.getLogger("longhaul.tools")

KEEPER = Path(__file__).with_name("keeper.py")
CLOSE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
MOST_BYTES = 16 * 1024 * 1024
"""Of one message of a server."""
MOST_PAGES = 20
"""Of a list of tools."""
COMMANDS_SEE = ("LONGHAUL_PYTHON_", "LONGHAUL_BROWSER_", "LONGHAUL_LOG_LEVEL", "EXA_API_KEY")
"""Variables that begin so are handed to a command; others (DATABASE_URL, ...) are not its business."""

_CALLED: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_ME = types.Implementation(name="longhaul", version="0.1.0")


class Unreachable(Exception):
    """There is no session: the server is away, refuses, or does not speak MCP."""


class Connection:
    """A session with `server`; `headers` go with every HTTP request of it."""

    def __init__(self, server: McpServer, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = headers
        self._leaving = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name=f"mcp-{server.label}")

    @property
    def closed(self) -> bool:
        return self._task.done()

    async def list_tools(self) -> list[types.Tool]:
        """All of its tools. Raises Unreachable, or MCPError where it refuses."""
        client, tools, cursor = await self._client(), list[types.Tool](), None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            tools += page.tools
            if (cursor := page.next_cursor) is None:
                break
        return tools

    async def call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Calls once; a caller that is cancelled has the server told so.

        Raises Unreachable where the call was not sent, MCPError where the server refused or went away.
        """
        client = await self._client()
        try:
            result = await self._send(client, tool, arguments)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
            await self.list_tools()  # the server has not looked at the call yet: it wants headers that its list names
            result = await self._send(client, tool, arguments)
        if isinstance(result, types.InputRequiredResult):
            raise MCPError(types.INVALID_REQUEST, "the tool asks for more input, which nobody here can give")
        return result

    async def close(self) -> None:
        """Ends the session, and the command; at the latest by force. Never raises."""
        self._leaving.set()
        if not self._ready.done():
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        if not done:
            log.warning("tool server %r does not let go of its session", self._server.label)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)

    async def _client(self) -> Client:
        return await asyncio.shield(self._ready)

    async def _send(
        self, client: Client, tool: str, arguments: dict[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        # Not `client.call_tool`: that lists the tools first, and throws away what does not fit their schemas.
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        return await client.session.send_request(request, _CALLED)

    async def _live(self) -> None:
        try:
            async with self._session() as client:
                self._ready.set_result(client)
                await self._leaving.wait()
        except Exception as error:
            # Not its text: that may quote what was called with.
            log.info("tool server %r: %s", self._server.label, ", ".join(sorted(_kinds(error))))
        finally:
            if not self._ready.done():
                self._ready.set_exception(Unreachable(self._server.label))
                self._ready.exception()  # perhaps nobody waits for it any more

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if self._server.url is not None:
                http = await stack.enter_async_context(_http_client(self._headers))
                transport = streamable_http_client(self._server.url, http_client=http, max_sse_event_size=MOST_BYTES)
            else:
                # What a command says beside its answers may quote what it was called with.
                aside = sys.stderr if log.isEnabledFor(logging.DEBUG) else stack.enter_context(_nowhere())
                transport = stdio_client(_parameters(self._server.command or ()), aside)
            yield await stack.enter_async_context(Client(transport, client_info=_ME, cache=None))


def _http_client(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    async def bound(response: httpx2.Response) -> None:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Bounded(response.stream)

    timeout = httpx2.Timeout(
        None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS
    )  # how long a call takes is ours to say
    return httpx2.AsyncClient(headers=dict(headers), timeout=timeout, event_hooks={"response": [bound]})


class _Bounded(httpx2.AsyncByteStream):
    """Ends with an error behind MOST_BYTES."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MOST_BYTES:
                raise httpx2.StreamError(f"more than {MOST_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def _parameters(command: Sequence[str]) -> StdioServerParameters:
    """The command behind its keeper. Raises FileNotFoundError."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(command[0])
    handed = {name: value for name, value in os.environ.items() if name.startswith(COMMANDS_SEE)}
    keeper = ("-I", "-S", str(KEEPER), str(os.getpid()), str(MOST_BYTES))
    return StdioServerParameters(command=sys.executable, args=[*keeper, *command], env=handed)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _kinds(error: BaseException) -> set[str]:
    """The types of what went wrong."""
    if isinstance(error, BaseExceptionGroup):
        return {kind for inner in error.exceptions for kind in _kinds(inner)}
    return {type(error).__name__}
