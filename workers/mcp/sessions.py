"""Where a worker's responses have their tools from. A response without tools needs no MCP library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from app.protocol.requests.hosted_tools import SERVER_TOOLS
from config.tools import McpServer

if TYPE_CHECKING:
    from workers.mcp.toolbox import Toolbox

RESULT_BYTES = 65536


class NoListing(Exception):
    """An MCP server did not list its tools; the message is fit for everybody."""


@dataclass(frozen=True, slots=True)
class McpSessions:
    """The servers of a worker's tools."""

    servers: Sequence[McpServer] = ()
    result_bytes: int = RESULT_BYTES
    """The most that a model is told of one result."""

    def open(self) -> None:
        """Loads the library, where it will be needed: that takes a second or two."""
        if self.servers:
            import_module("workers.mcp.toolbox")

    def toolbox(
        self, request: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]], *, images: bool
    ) -> Toolbox | None:
        """For one response, None where it needs none; `secrets` are the headers it brought, by server label."""
        if not any(tool["type"] in SERVER_TOOLS for tool in request["tools"]):
            return None
        from workers.mcp.results import View
        from workers.mcp.toolbox import Toolbox

        view = View(self.result_bytes, request["include"], images)
        return Toolbox(self.servers, request["tools"], secrets, view)
