"""One session with an MCP server, over streamable HTTP or over the stdin and stdout of a command.

One task opens, holds and closes the session: the SDK wants its cancel scopes left by the task that entered them.
So a caller can be cancelled at any moment, and the session still closes in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from config.process import command_of
from config.server_kind import SERVER_PREFIXES
from config.tools import McpServer
from workers.mcp import stdio_supervisor
from workers.mcp.errors import Unreachable

log = logging.getLogger("longhaul.tools")

SUPERVISOR = command_of(stdio_supervisor.__name__)
CLOSE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_LIST_PAGES = 20
PASSED_VARIABLES = (*SERVER_PREFIXES, "LONGHAUL_LOG_LEVEL", "EXA_API_KEY")
"""A command gets the environment variables with these prefixes alone: it must not see DATABASE_URL and the like."""

_CLIENT = types.Implementation(name="longhaul", version=version("longhaul"))
_CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class Session:
    """A session with `server`. `headers` are sent with each of its HTTP requests."""

    def __init__(self, server: McpServer, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = headers
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

    async def call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Calls a tool once. If the caller is cancelled, so is the call on the server.

        Raises Unreachable if the call was not sent, and MCPError if the server refused or went away.
        """
        client = await self._connected_client()
        try:
            result = await self._send(client, tool, arguments)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
            # The server has not run the call: it wants headers that its list of tools names. Listing sets them.
            await self.list_tools()
            result = await self._send(client, tool, arguments)
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
        self, client: Client, tool: str, arguments: dict[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        # `client.call_tool` would list the tools first, and discard results that do not match their schemas.
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        return await client.session.send_request(request, _CALL_RESULT)

    async def _hold(self) -> None:
        """Opens the session, and keeps it open until `close`."""
        try:
            async with self._open() as client:
                self._client.set_result(client)
                await self._close_requested.wait()
        except Exception as error:
            # The types alone: the text may quote arguments.
            log.info("MCP server %r: %s", self._server.label, ", ".join(sorted(_type_names(error))))
        finally:
            if not self._client.done():
                self._client.set_exception(Unreachable(self._server.label))
                self._client.exception()  # marks it as retrieved: the callers may all have been cancelled

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if self._server.url is not None:
                http = await stack.enter_async_context(_http_client(self._headers))
                url = self._server.url
                transport = streamable_http_client(url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES)
            else:
                # What a command writes to stderr may quote arguments.
                stderr = sys.stderr if log.isEnabledFor(logging.DEBUG) else stack.enter_context(_devnull())
                transport = stdio_client(_parameters(self._server.command or ()), stderr)
            yield await stack.enter_async_context(Client(transport, client_info=_CLIENT, cache=None))


def _http_client(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    async def limit(response: httpx2.Response) -> None:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _LimitedStream(response.stream)

    # No read timeout: the toolbox limits the whole call.
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
    return httpx2.AsyncClient(headers=dict(headers), timeout=timeout, event_hooks={"response": [limit]})


class _LimitedStream(httpx2.AsyncByteStream):
    """A body that ends with an error after MAX_MESSAGE_BYTES."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"more than {MAX_MESSAGE_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


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
