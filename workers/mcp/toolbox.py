"""The hosted tools of one response: sessions with their servers, opened at first use and closed with the response."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import mcp_types as types
from mcp.shared.exceptions import MCPError

from app.aio import BackgroundTasks
from app.bounds import BoundReached
from app.heavy import off_loop
from app.protocol.types import Json
from config.server_kind import SEARCH_META, ServerKind
from config.settings import ConfigError
from config.tools import McpServer, expand_headers, server_for, server_of_kind
from workers.formats.calls.browser import SEARCH, search_options, unknown_option
from workers.formats.calls.hosted import HostedCall, arguments_of
from workers.formats.calls.mcp import is_offered
from workers.mcp.errors import ListingFailed, SessionGone, Unreachable
from workers.mcp.results import ResultOptions, ToolResult, failed_result, result_of, size_of, tool_list
from workers.mcp.session import Session

log = logging.getLogger("longhaul.tools")

LIST_ATTEMPTS = 2
_REPEATABLE = ("readOnlyHint", "idempotentHint")
"""Annotations of tools whose calls may be made twice."""


_SessionKey = tuple[str, str | None]
"""The label of the operator's server, and that of the request's tool whose headers the server gets, if it gets any."""


class Toolbox:
    """The hosted tools of one response: `tools` from its request, `secrets` as headers by server label.

    Its sessions end in `closing`. `answered`: the kinds of the calls that earlier attempts have made.
    """

    def __init__(
        self,
        servers: Sequence[McpServer],
        tools: Sequence[Json],
        secrets: Mapping[str, Mapping[str, str]],
        options: ResultOptions,
        closing: BackgroundTasks,
        answered: Collection[ServerKind | None] = (),
    ) -> None:
        self._servers = servers
        self._specs = {tool["server_label"]: tool for tool in tools if tool["type"] == "mcp"}
        self._secrets = secrets
        self._options = options
        self._search = search_options(tools)
        self._needs_options = unknown_option(tools) is not None
        self._knows_options: bool | None = None
        self._sessions: dict[_SessionKey, Session] = {}
        self._running: Counter[Session] = Counter()
        """How many calls, or listings, run in each session."""
        self._answered = set(answered)
        """The kinds of servers that answered a call: a later session with a built-in one has lost what it kept."""
        self._closing = closing

    async def list_tools(self, label: str) -> list[Json]:
        """The tools of an MCP server that operator and request allow. Raises ListingFailed."""
        server = self._server("mcp", label)
        if server is None:
            raise ListingFailed(f"The server {label!r} is not one that this deployment knows any more.")
        tools, spec = tool_list(await self._listed(server, label)), self._specs[label]
        return [tool for tool in tools if is_offered(spec, tool) and server.allows(tool["name"])]

    async def knows_search_options(self) -> bool:
        """Whether the browser takes what the request asks of its searches. Raises ListingFailed."""
        if self._knows_options is None and (server := self._server("browser", None)) is not None:
            tools = await self._listed(server, None)
            self._knows_options = any(tool.name == SEARCH and (tool.meta or {}).get(SEARCH_META) for tool in tools)
        return bool(self._knows_options)

    async def _listed(self, server: McpServer, label: str | None) -> list[types.Tool]:
        """Returns the tools that the server lists. Tries twice. Raises ListingFailed."""
        for attempt in range(LIST_ATTEMPTS):
            try:
                with self._session(server, label, ends=lambda _: True) as session:
                    async with asyncio.timeout(server.timeout_seconds):
                        return await session.list_tools()
            except Exception as error:  # raised by the library, by the transport, or for an invalid answer
                log.info("MCP server %r did not list its tools: %s", server.label, type(error).__name__)
                if attempt + 1 == LIST_ATTEMPTS:
                    raise ListingFailed(_message(error, label or server.label, server)) from None
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
        # The setup of the response has refused this, unless the browser was away then.
        if call.kind == "browser" and self._needs_options and not await self._takes_options():
            return self.failed(call, f"The MCP server {name!r} cannot search as it is asked to.", types.INVALID_REQUEST)
        try:
            try:
                answer = await self._answer(server, call, arguments)
            except SessionGone:
                answer = await self._answer(server, call, arguments)  # nobody has made the call yet
        except Exception as error:  # raised by the library, by the transport, or for an invalid answer
            log.info("MCP server %r failed a call: %s", server.label, type(error).__name__)
            return self.failed(call, _message(error, name, server), _code_of(error))
        return await off_loop(partial(result_of, call, answer, self._options), size_of(answer))

    async def _answer(self, server: McpServer, call: HostedCall, arguments: Json) -> types.CallToolResult:
        with self._session(server, call.server_label, ends=_ends_session) as session:
            async with asyncio.timeout(server.timeout_seconds):
                meta = {SEARCH_META: self._search} if call.kind == "browser" and self._search else None
                answer = await session.call(call.tool, arguments, meta)
        self._answered.add(server.kind)
        return answer

    async def _takes_options(self) -> bool:
        try:
            return await self.knows_search_options()
        except ListingFailed:
            return False

    def failed(self, call: HostedCall, message: str, code: int = types.INTERNAL_ERROR) -> ToolResult:
        """The result of a call that was not made, or that did not end."""
        return failed_result(call, message, self._options, code)

    async def may_repeat(self, call: HostedCall) -> bool:
        """Whether a call may be made a second time if its worker died during the first (`after_crash`)."""
        server = self._server(call.kind, call.server_label)
        if server is None or server.after_crash is not None or server.kind != "mcp":
            return server is not None and server.after_crash != "fail"
        try:
            tools = await self.list_tools(call.server_label or "")
        except ListingFailed:
            return False
        hints = [tool["annotations"] or {} for tool in tools if tool["name"] == call.tool]
        return any(hint.get(name) is True for hint in hints for name in _REPEATABLE)

    def close(self) -> None:
        """Begins to end every session, and waits for none: a server may not answer."""
        for session in {*self._sessions.values(), *self._running}:
            self._closing.start(session.close())

    def _server(self, kind: ServerKind | None, label: str | None) -> McpServer | None:
        if kind != "mcp":
            return None if kind is None else server_of_kind(self._servers, kind)
        spec = self._specs.get(label or "")
        return None if spec is None else server_for(self._servers, spec["server_label"], spec.get("server_url"))

    @contextmanager
    def _session(self, server: McpServer, label: str | None, *, ends: Callable[[Exception], bool]) -> Iterator[Session]:
        """The open session with this server, or a new one, for a tool of the request that has this label.

        After an error that `ends` it, the next call opens another one; this one is closed once its other calls have
        ended. Raises ConfigError.
        """
        from_request = self._secrets.get(label or "") if server.request_headers else None
        key = server.label, label if from_request else None
        if key not in self._sessions or self._sessions[key].closed:
            headers = {**expand_headers(server.headers, os.environ), **(from_request or {})}
            self._sessions[key] = Session(server, headers, renewed=server.kind in self._answered)
        session = self._sessions[key]
        self._running[session] += 1
        try:
            yield session
        except Exception as error:
            if ends(error) and self._sessions.get(key) is session:
                del self._sessions[key]
            raise
        finally:
            self._running[session] -= 1
            if not self._running[session]:
                del self._running[session]
                if self._sessions.get(key) is not session:
                    self._closing.start(session.close())


def _ends_session(error: Exception) -> bool:
    """Whether the session is lost with its connection, or because its server has forgotten it."""
    if isinstance(error, MCPError):
        return error.code == types.CONNECTION_CLOSED
    return not isinstance(error, TimeoutError | ValueError)


def _message(error: Exception, label: str, server: McpServer) -> str:
    if isinstance(error, TimeoutError):
        return f"The MCP server {label!r} did not answer within {server.timeout_seconds:g} s; the call was given up."
    if isinstance(error, MCPError) and error.code != types.CONNECTION_CLOSED:
        return f"The MCP server {label!r} refused: {error.message}"
    if isinstance(error, BoundReached):
        return f"The MCP server {label!r} was not called: all {error.total} that a worker holds are in use. Try later."
    if isinstance(error, ConfigError):
        log.error("MCP server %r: %s", server.label, error)
    if isinstance(error, Unreachable | SessionGone | MCPError | ConfigError):
        return f"The MCP server {label!r} cannot be reached."
    return f"The MCP server {label!r} gave an answer that is not the result of a call."


def _code_of(error: Exception) -> int:
    if isinstance(error, MCPError):
        return error.code
    if isinstance(error, TimeoutError):
        return types.REQUEST_TIMEOUT
    return types.CONNECTION_CLOSED if isinstance(error, Unreachable | SessionGone) else types.INTERNAL_ERROR
