"""Whether the operator has servers for the tools of a request: no other address is ever talked to."""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.errors import InvalidRequest
from app.protocol.hosted_kinds import KIND_OF_TOOL
from app.protocol.requests.mcp_tool import McpTool
from app.protocol.requests.tools import Tool
from app.protocol.text import shortened
from config.tools import McpServer, server_for, server_of_kind


def check_servers(tools: Sequence[Tool], servers: Sequence[McpServer]) -> None:
    """Raises InvalidRequest about the first tool that no server may run."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if isinstance(tool, McpTool):
            _check_mcp(where, tool, servers)
        elif (kind := KIND_OF_TOOL.get(tool.type)) is not None and server_of_kind(servers, kind.server_kind) is None:
            raise _refused(f"Invalid '{{path}}': no tool server here runs '{tool.type}'.", f"{where}.type")


def _check_mcp(where: str, tool: McpTool, servers: Sequence[McpServer]) -> None:
    server = server_for(servers, tool.server_label, tool.server_url)
    if server is None and tool.server_url is None:
        message = f"Invalid '{{path}}': no MCP server '{tool.server_label}' is allowed here."
        raise _refused(message, f"{where}.server_label")
    if server is None:
        message = f"Invalid '{{path}}': the MCP server '{shortened(tool.server_url or '', 128)}' is not allowed here."
        raise _refused(message, f"{where}.server_url")
    if tool.secrets() and not server.request_headers:
        field = "headers" if tool.headers else "authorization"
        raise _refused("'{path}' is not allowed for this MCP server.", f"{where}.{field}")


def _refused(message: str, where: str) -> InvalidRequest:
    return InvalidRequest(message.replace("{path}", where), where, "tool_server_not_allowed")
