"""What the operator allows of a server, whatever the request and its client's items say."""

from __future__ import annotations

import pytest

from config.tools import McpServer
from workers.formats.calls.hosted import HostedCall, McpServerKind
from workers.mcp import toolbox as module
from workers.mcp.results import ResultOptions
from workers.mcp.toolbox import Toolbox

SERVER = McpServer("docs", "mcp", "http://127.0.0.1:1/mcp", allowed_tools=frozenset({"read"}))
SPEC = {"type": "mcp", "server_label": "docs", "allowed_tools": None}


class Listing:
    """A session that lists two tools, and may not be called."""

    closed = False

    async def list_tools(self) -> list[str]:
        return ["read", "delete"]

    async def call(self, tool: str, arguments: object) -> None:
        raise AssertionError(f"{tool} was called")


@pytest.fixture
def toolbox(monkeypatch: pytest.MonkeyPatch) -> Toolbox:
    monkeypatch.setattr(module, "Session", lambda *_: Listing())
    monkeypatch.setattr(module, "tool_list", lambda names: [{"name": name} for name in names])
    return Toolbox([SERVER], [SPEC], {}, ResultOptions(1000))


async def test_a_tool_that_the_operator_does_not_allow_is_not_listed(toolbox: Toolbox) -> None:
    assert await toolbox.list_tools("docs") == [{"name": "read"}]


async def test_a_tool_that_only_a_made_up_list_has_is_not_called(toolbox: Toolbox) -> None:
    result = await toolbox.run(HostedCall("docs__delete", "{}", McpServerKind.MCP, "docs", "delete"), None)
    assert "has no tool 'delete'" in str(result)
