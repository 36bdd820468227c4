"""The MCP server: passes calls to the session's browser, and makes results of its views and errors."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent

from workers.toolservers.browser import schema
from workers.toolservers.browser.browser import Browser, Limits
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Backend, options_of
from workers.toolservers.serving import state_of

log = logging.getLogger("longhaul.tools.browser")


CALLS_AT_ONCE = 32
"""Calls of all sessions that run at once; more wait."""


def build_server(backend: Backend, limits: Limits) -> Server[Any]:
    """A server whose sessions each have a browser."""
    tools = _Tools(backend, limits)
    return Server("browser", instructions=schema.INSTRUCTIONS, on_list_tools=tools.list, on_call_tool=tools.call)


class _Tools:
    def __init__(self, backend: Backend, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)

    async def list(self, _: ServerRequestContext[Any, Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=schema.tools())

    async def call(self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        """Carries out a call. A failure is a result with isError, so that the model can read the reason."""
        try:
            request = schema.parse(params.name, params.arguments or {})
            options = options_of(params.meta)
            browser = state_of(context, lambda _: Browser(self._backend, self._limits, self._slots))
            view = await browser.call(request, options)
        except BrowserError as error:
            return _failed(str(error), error.action)
        except Exception as error:
            # The type alone: the message may quote a page or a query.
            log.error("%s failed: %s", params.name, type(error).__name__)
            log.debug("traceback of the failure:", exc_info=True)
            return _failed("The browser failed at this; something else may work.", None)
        return CallToolResult(content=[TextContent(text=view.text())], structured_content=view.facts())


def _failed(message: str, action: dict[str, Any] | None) -> CallToolResult:
    structured = {"action": action} if action is not None else None
    return CallToolResult(content=[TextContent(text=message)], structured_content=structured, is_error=True)
