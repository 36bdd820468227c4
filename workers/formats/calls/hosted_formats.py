"""The kinds of hosted tools, and the hosted tools of a request by the names that the model uses.

    tool of the request    chat models                            harmony
    code_interpreter       python                                 python
    web_search             browser_search, _open, _find           browser.search, .open, .find
    mcp                    <server_label>__<tool>                 <server_label>.<tool>

A chat model calls hosted tools as functions, beside the client's own. To add a kind, write a module like `python.py`
and list it in FORMATS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.protocol.requests.tools.any_tool import CLIENT_TYPES
from config.server_kind import ServerKind
from workers.engine.base import InvalidSampling
from workers.formats.calls.browser import BROWSER
from workers.formats.calls.hosted import (
    HostedTool,
    HostedToolFormat,
    HostedTools,
    Item,
    Listings,
    NameStyle,
    OpenCall,
    ShownCall,
)
from workers.formats.calls.mcp import MCP, open_mcp_call
from workers.formats.calls.python import PYTHON
from workers.formats.content import Result

FORMATS: tuple[HostedToolFormat, ...] = (PYTHON, BROWSER, MCP)

_BY_ITEM_TYPE: Mapping[str, HostedToolFormat] = {each.kind.call_type: each for each in FORMATS}
_BY_TOOL_TYPE: Mapping[str, HostedToolFormat] = {name: each for each in FORMATS for name in each.kind.tool_types}
_OPEN_CALLS: Mapping[ServerKind | None, Callable[[HostedTool], OpenCall]] = {
    None: open_mcp_call,
    **{each.kind.server_kind: each.open_call for each in FORMATS},
}


def hosted_tools_of(request: Mapping[str, Any], listings: Listings, style: NameStyle) -> dict[str, HostedTool]:
    """The hosted tools of a stored request; `listings` has what its MCP servers listed.

    Raises InvalidSampling if two tools would have the same name.
    """
    found: dict[str, HostedTool] = {}
    client = {
        tool["name"]: f"tools[{index}]" for index, tool in enumerate(request["tools"]) if tool["type"] in CLIENT_TYPES
    }
    for index, entry in enumerate(request["tools"]):
        kind = _BY_TOOL_TYPE.get(entry["type"])
        for tool in kind.tools(entry, f"tools[{index}]", listings, style) if kind is not None else ():
            other = client.get(tool.name) if style is NameStyle.CHAT else None
            if other is None and tool.name in found:
                other = found[tool.name].field
            if other is not None:
                raise InvalidSampling(f"{tool.field} and {other} would both be called {tool.name!r} by this model")
            found[tool.name] = tool
    return found


def chosen_names(choice: Mapping[str, Any], hosted: HostedTools) -> frozenset[str]:
    """The hosted tools that an object of `tool_choice`, or of its allowed tools, means; none if it is a client's."""
    found = _BY_TOOL_TYPE.get(choice["type"])
    if found is None:
        return frozenset()
    tools = (tool for tool in hosted.values() if tool.kind == found.kind.server_kind)
    return frozenset(tool.name for tool in tools if found.is_chosen(choice, tool))


def open_hosted_call(tool: HostedTool) -> OpenCall:
    """A call of this tool that the model begins to write."""
    return _OPEN_CALLS[tool.kind](tool)


def shown_call(item: Item, style: NameStyle) -> ShownCall:
    """The call of an item of a hosted tool."""
    return _BY_ITEM_TYPE[item["type"]].shown_call(item, style)


def result_of(item: Item) -> Result:
    """The result of that call: what the model read, or would have read."""
    if (call := item.get("call")) is not None:
        result: Result = call["result"]
        return result
    return _BY_ITEM_TYPE[item["type"]].shown_result(item)
