"""The hosted tools of one response: sessions with their servers, opened at first use and closed with the response."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

import mcp_types as types
from mcp.shared.exceptions import MCPError

from app.protocol.types import Json
from config.server_kind import ServerKind
from config.settings import ConfigError
from config.tools import McpServer, expand_headers, server_for, server_of_kind
from workers.formats.calls.hosted import HostedCall, arguments_of
from workers.formats.calls.mcp import is_offered
from workers.mcp.errors import ListingFailed, Unreachable
from workers.mcp.results import ResultOptions, ToolResult, failed_result, result_of, tool_list
from workers.mcp.session import Session

log = logging.getLogger("longhaul.tools")

LIST_ATTEMPTS = 2
_SESSION_ENDED = frozenset({types.CONNECTION_CLOSED, types.INVALID_REQUEST})
"""Error codes after which the server may have forgotten the session, so the next call opens a new one."""


_SessionKey = tuple[str, str | None]
"""The label of the operator's server, and that of the request's tool whose headers the server gets, if it gets any."""


class Toolbox:
    """The hosted tools of one response: `tools` from its request, `secrets` as headers by server label."""

    def __init__(
        self,
        servers: Sequence[McpServer],
        tools: Sequence[Json],
        secrets: Mapping[str, Mapping[str, str]],
        options: ResultOptions,
    ) -> None:
        self._servers = servers
        self._specs = {tool["server_label"]: tool for tool in tools if tool["type"] == "mcp"}
        self._secrets = secrets
        self._options = options
        self._sessions: dict[_SessionKey, Session] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def list_tools(self, label: str) -> list[Json]:
        """The tools of an MCP server that operator and request allow. Tries twice. Raises ListingFailed."""
        server = self._server("mcp", label)
        if server is None:
            raise ListingFailed(f"The server {label!r} is not one that this deployment knows any more.")
        for attempt in range(LIST_ATTEMPTS):
            session: Session | None = None
            try:
                session = self._session(server, label)
                async with asyncio.timeout(server.timeout_seconds):
                    tools = tool_list(await session.list_tools())
            except Exception as error:  # raised by the library, by the transport, or for an invalid answer
                log.info("MCP server %r did not list its tools: %s", server.label, type(error).__name__)
                self._drop(session)
                if attempt + 1 == LIST_ATTEMPTS:
                    raise ListingFailed(_message(error, label, server)) from None
            else:
                offered = (tool for tool in tools if is_offered(self._specs[label], tool))
                return [tool for tool in offered if server.allows(tool["name"])]
        raise AssertionError("unreachable")

    async def run(self, call: HostedCall, code: str | None) -> ToolResult:
        """Makes a call once. Raises only CancelledError: a failure is a result. `code` is for the python tool."""
        arguments = arguments_of(call.arguments) if code is None else {"code": code}
        name = call.server_label or str(call.kind)
        server = self._server(call.kind, call.server_label)
        if arguments is None:
            return self.failed(call, "The arguments are not a JSON object.", types.INVALID_PARAMS)
        if server is None:
            return self.failed(call, f"There is no MCP server {name!r} any more.", types.INVALID_REQUEST)
        if call.kind == "mcp" and not server.allows(call.tool):  # A client may have made up the list.
            return self.failed(call, f"The MCP server {name!r} has no tool {call.tool!r}.", types.INVALID_PARAMS)
        session: Session | None = None
        try:
            session = self._session(server, call.server_label)
            async with asyncio.timeout(server.timeout_seconds):
                answer = await session.call(call.tool, arguments)
        except Exception as error:  # raised by the library, by the transport, or for an invalid answer
            log.info("MCP server %r failed a call: %s", server.label, type(error).__name__)
            if not _keeps_session(error):
                self._drop(session)
            return self.failed(call, _message(error, name, server), _code_of(error))
        return result_of(call, answer, self._options)

    def failed(self, call: HostedCall, message: str, code: int = types.INTERNAL_ERROR) -> ToolResult:
        """The result of a call that was not made, or that did not end."""
        return failed_result(call, message, self._options, code)

    def may_repeat(self, call: HostedCall) -> bool:
        """Whether a call may be made a second time if its worker died during the first (`after_crash`)."""
        server = self._server(call.kind, call.server_label)
        return server is not None and server.after_crash == "again"

    async def close(self) -> None:
        """Ends every session. Never raises."""
        for session in list(self._sessions.values()):
            self._drop(session)
        if self._closing:
            await asyncio.wait(self._closing)

    def _server(self, kind: ServerKind | None, label: str | None) -> McpServer | None:
        if kind != "mcp":
            return None if kind is None else server_of_kind(self._servers, kind)
        spec = self._specs.get(label or "")
        return None if spec is None else server_for(self._servers, spec["server_label"], spec.get("server_url"))

    def _session(self, server: McpServer, label: str | None) -> Session:
        """The open session with this server, or a new one, for a tool of the request that has this label.

        Raises ConfigError.
        """
        from_request = self._secrets.get(label or "") if server.request_headers else None
        key = (server.label, label if from_request else None)
        if (found := self._sessions.get(key)) is not None and found.closed:
            self._drop(found)
        if key not in self._sessions:
            headers = {**expand_headers(server.headers, os.environ), **(from_request or {})}
            self._sessions[key] = Session(server, headers)
        return self._sessions[key]

    def _drop(self, session: Session | None) -> None:
        """Closes this session, unless it is closing already; the next call opens another one."""
        for key, held in list(self._sessions.items()):
            if held is session:
                del self._sessions[key]
                task = asyncio.create_task(held.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)


def _keeps_session(error: Exception) -> bool:
    is_refusal = isinstance(error, MCPError) and error.code not in _SESSION_ENDED
    return is_refusal or isinstance(error, TimeoutError | ValueError)


def _message(error: Exception, label: str, server: McpServer) -> str:
    if isinstance(error, TimeoutError):
        return f"The MCP server {label!r} did not answer within {server.timeout_seconds:g} s; the call was given up."
    if isinstance(error, MCPError) and error.code != types.CONNECTION_CLOSED:
        return f"The MCP server {label!r} refused: {error.message}"
    if isinstance(error, ConfigError):
        log.error("MCP server %r: %s", server.label, error)
    if isinstance(error, Unreachable | MCPError | ConfigError):
        return f"The MCP server {label!r} cannot be reached."
    return f"The MCP server {label!r} gave an answer that is not the result of a call."


def _code_of(error: Exception) -> int:
    if isinstance(error, MCPError):
        return error.code
    if isinstance(error, TimeoutError):
        return types.REQUEST_TIMEOUT
    return types.CONNECTION_CLOSED if isinstance(error, Unreachable) else types.INTERNAL_ERROR
