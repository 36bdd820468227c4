"""Checks that the operator allows the MCP servers of a request: Longhaul connects to no other address."""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.errors import InvalidRequest
from app.protocol.hosted_kinds import KIND_OF_TOOL, WEB_SEARCH, HostedToolKind
from app.protocol.requests.tools.any_tool import Tool
from app.protocol.requests.tools.mcp import McpTool
from app.protocol.text import shortened
from config.tools import McpServer, server_for, server_of_kind

MAX_SHOWN_URL_CHARS = 128


def check_servers(tools: Sequence[Tool], servers: Sequence[McpServer]) -> None:
    """Raises InvalidRequest for the first hosted tool that none of the operator's `servers` may run."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if isinstance(tool, McpTool):
            _check_mcp_tool(where, tool, servers)
        elif (kind := KIND_OF_TOOL.get(tool.type)) is not None and server_of_kind(servers, kind.server_kind) is None:
            raise _not_allowed(_nobody_runs(tool.type, kind), f"{where}.type")


def _nobody_runs(tool_type: str, kind: HostedToolKind) -> str:
    offline = ", or send 'external_web_access': false with it" if kind is WEB_SEARCH else ""
    return (
        f"Invalid '{{path}}': no MCP server here runs '{tool_type}'. Leave the tool out{offline}. "
        f"The operator can add a server of the kind '{kind.server_kind}', or set LONGHAUL_OMIT_TOOLS={kind.name}."
    )


def _check_mcp_tool(where: str, tool: McpTool, servers: Sequence[McpServer]) -> None:
    server = server_for(servers, tool.server_label, tool.server_url)
    if server is None and tool.server_url is None:
        message = f"Invalid '{{path}}': no MCP server '{tool.server_label}' is allowed here."
        raise _not_allowed(message, f"{where}.server_label")
    if server is None:
        url = shortened(tool.server_url or "", MAX_SHOWN_URL_CHARS)
        raise _not_allowed(f"Invalid '{{path}}': the MCP server '{url}' is not allowed here.", f"{where}.server_url")
    if tool.secrets() and not server.request_headers:
        field = "headers" if tool.headers else "authorization"
        raise _not_allowed("'{path}' is not allowed for this MCP server.", f"{where}.{field}")
    if server.require_approval and tool.require_approval not in (None, "always"):
        message = "Invalid '{path}': every call of this MCP server needs approval here; send 'always', or leave it out."
        raise _not_allowed(message, f"{where}.require_approval")


def _not_allowed(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(message.replace("{path}", where), where, "tool_server_not_allowed")
