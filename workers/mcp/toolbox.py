"""The tools that one response uses: sessions with their servers, opened when first used and closed at its end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

import mcp_types as types
from mcp.shared.exceptions import MCPError

from config.settings import ConfigError
from config.tools import McpServer, expanded, server_for, server_of_kind
from workers.formats.calls.hosted import HostedCall, Kind, arguments_of
from workers.formats.calls.permission import is_offered
from workers.mcp.results import Json, ToolResult, View, failed, listed, ran
from workers.mcp.session import Connection, Unreachable
from workers.mcp.sessions import NoListing

log = logging.getLogger("longhaul.tools")

_GONE = frozenset({types.CONNECTION_CLOSED, types.INVALID_REQUEST})
"""Errors behind which a session may not be one any more: the next call has a new one."""


class Toolbox:
    """Of one response. `tools` are those of its request, `secrets` the headers it brought, by server label."""

    def __init__(
        self,
        servers: Sequence[McpServer],
        tools: Sequence[Json],
        secrets: Mapping[str, Mapping[str, str]],
        view: View,
    ) -> None:
        self._servers = servers
        self._specs = {tool["server_label"]: tool for tool in tools if tool["type"] == "mcp"}
        self._secrets = secrets
        self._view = view
        self._connections: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def list_tools(self, label: str) -> list[Json]:
        """What the request allows of an MCP server's tools. Asks twice where it must. Raises NoListing."""
        server = self._server(Kind.MCP, label)
        if server is None:
            raise NoListing(f"The server {label!r} is not one that this deployment knows any more.")
        for attempt in (1, 2):
            try:
                async with asyncio.timeout(server.timeout_seconds):
                    tools = listed(await self._connection(server, label).list_tools())
            except Exception as error:  # the library's own, the transport's, a server's nonsense
                log.info("tool server %r did not list its tools: %s", server.label, type(error).__name__)
                self._drop(label)
                if attempt == 2:
                    raise NoListing(_why_not(error, label, server)) from None
            else:
                return [tool for tool in tools if is_offered(self._specs[label], tool)]
        raise AssertionError("unreachable")

    async def run(self, call: HostedCall, code: str | None) -> ToolResult:
        """Makes a call, once. Whatever goes wrong is told: nothing is raised but CancelledError. `code` is python's."""
        arguments = arguments_of(call.arguments) if code is None else {"code": code}
        key = call.server_label or call.kind.value
        server = self._server(call.kind, call.server_label)
        if arguments is None:
            return self.failed(call, "The arguments are not a JSON object.", types.INVALID_PARAMS)
        if server is None:
            return self.failed(call, f"There is no tool server {key!r} any more.", types.INVALID_REQUEST)
        try:
            async with asyncio.timeout(server.timeout_seconds):
                answer = await self._connection(server, key).call(call.tool, arguments)
        except Exception as error:  # the library's own, the transport's, a server's nonsense
            log.info("tool server %r failed a call: %s", server.label, type(error).__name__)
            if not _keeps_session(error):
                self._drop(key)
            return self.failed(call, _why_not(error, key, server), _code_of(error))
        return ran(call, answer, self._view)

    def failed(self, call: HostedCall, message: str, code: int = types.INTERNAL_ERROR) -> ToolResult:
        """A call that was not made, or not to its end."""
        return failed(call, message, self._view, code)

    def runs_again(self, call: HostedCall) -> bool:
        """Whether a call may be made anew that was under way when its worker went."""
        server = self._server(call.kind, call.server_label)
        return server is not None and server.after_crash == "again"

    async def close(self) -> None:
        """Ends every session. Never raises."""
        for key in list(self._connections):
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _server(self, kind: Kind, label: str | None) -> McpServer | None:
        if kind is not Kind.MCP:
            return server_of_kind(self._servers, kind.value)
        spec = self._specs.get(label or "")
        return None if spec is None else server_for(self._servers, spec["server_label"], spec.get("server_url"))

    def _connection(self, server: McpServer, key: str) -> Connection:
        """The session with this server; `key` is what this response calls it. Raises ConfigError."""
        if (found := self._connections.get(key)) is not None and found.closed:
            self._drop(key)
        if key not in self._connections:
            brought = self._secrets.get(key, {}) if server.request_headers else {}
            headers = {**expanded(server.headers, os.environ), **brought}
            self._connections[key] = Connection(server, headers)
        return self._connections[key]

    def _drop(self, key: str) -> None:
        if (connection := self._connections.pop(key, None)) is not None:
            task = asyncio.create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _keeps_session(error: Exception) -> bool:
    return isinstance(error, TimeoutError | ValueError) or (isinstance(error, MCPError) and error.code not in _GONE)


def _why_not(error: Exception, label: str, server: McpServer) -> str:
    if isinstance(error, TimeoutError):
        return f"The tool server {label!r} did not answer within {server.timeout_seconds:g} s; the call was given up."
    if isinstance(error, MCPError) and error.code != types.CONNECTION_CLOSED:
        return f"The tool server {label!r} refused: {error.message}"
    if isinstance(error, ConfigError):
        log.error("tool server %r: %s", server.label, error)
    if isinstance(error, Unreachable | MCPError | ConfigError):
        return f"The tool server {label!r} cannot be reached."
    return f"The tool server {label!r} gave an answer that is no result of a call."


def _code_of(error: Exception) -> int:
    if isinstance(error, MCPError):
        return error.code
    if isinstance(error, TimeoutError):
        return types.REQUEST_TIMEOUT
    return types.CONNECTION_CLOSED if isinstance(error, Unreachable) else types.INTERNAL_ERROR
