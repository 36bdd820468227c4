"""The MCP servers of a worker. The MCP library is loaded only where a response has hosted tools."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from app.aio import BackgroundTasks
from app.protocol.hosted_kinds import KIND_OF_TOOL
from config.server_kind import ServerKind
from config.tools import McpServer

if TYPE_CHECKING:
    from workers.mcp.toolbox import Toolbox

CLOSING_SECONDS = 10.0
"""How long a worker that stops waits for sessions to close. Each ends by force before."""


@dataclass(slots=True)
class McpSessions:
    """Makes the toolbox of each response from the MCP servers that the deployment allows now."""

    servers: Sequence[McpServer]
    result_bytes: int
    """The most bytes of one tool result that the model gets."""
    closing: BackgroundTasks = field(default_factory=BackgroundTasks)
    """The ends of sessions: a server that does not answer holds up no response."""

    def open(self) -> None:
        """Loads the MCP library if there are servers: that takes one or two seconds, so it happens at the start."""
        if self.servers:
            import_module("workers.mcp.toolbox")

    async def close(self) -> None:
        await self.closing.close(CLOSING_SECONDS)

    def toolbox(
        self,
        request: Mapping[str, Any],
        secrets: Mapping[str, Mapping[str, str]],
        *,
        images: bool,
        answered: Collection[ServerKind | None] = (),
    ) -> Toolbox | None:
        """The toolbox of one response; None if it has no hosted tools.

        `secrets` are the HTTP headers that the request brought, by server label. `images`: the model can see images.
        `answered`: the kinds of the calls that earlier attempts have made.
        """
        if not any(tool["type"] in KIND_OF_TOOL for tool in request["tools"]):
            return None
        from workers.mcp.results import ResultOptions
        from workers.mcp.toolbox import Toolbox

        options = ResultOptions(self.result_bytes, request["include"], images)
        return Toolbox(self.servers, request["tools"], secrets, options, self.closing, answered)
