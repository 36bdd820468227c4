"""mcp: the tools of MCP servers that a request names, whether calls need approval, and tools that the model invented.

`spec` is a request's tool, `tool` an entry of an mcp_list_tools item. Source of the rules: openai's tool_param.Mcp.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol import hosted_kinds
from app.protocol.events.deltas import Approval, Delta, McpArguments, McpStart
from app.protocol.types import Json
from workers.formats.calls.hosted import (
    MAX_TOOL_NAME_CHARS,
    NO_RESULT,
    HostedTool,
    HostedToolFormat,
    Item,
    Listings,
    NameStyle,
    OpenCall,
    OpenHostedCall,
    ShownCall,
    arguments_of,
    as_object,
    function_name,
)


class McpCall(OpenHostedCall):
    """McpStart, McpArguments..."""

    def start(self) -> list[Delta]:
        return [_start(self._tool)]

    def feed(self, text: str) -> list[Delta]:
        super().feed(text)
        return [McpArguments(text)]


class ApprovalCall(OpenHostedCall):
    """Approval, once the call is complete; a call that was cut within its arguments shows nothing.

    A call with unreadable arguments needs no approval, because it cannot be run: it fails, and the model reads that.
    """

    def finish(self, *, cut: bool) -> list[Delta]:
        tool, arguments = self._tool, self._arguments
        readable = arguments_of(arguments) is not None
        if cut and not (readable and arguments):
            return []
        if readable:
            return [Approval(tool.server_label or "", tool.tool, arguments)]
        super().finish(cut=cut)
        return [_start(tool), *([McpArguments(arguments)] if arguments else [])]


def open_mcp_call(tool: HostedTool) -> OpenCall:
    return ApprovalCall(tool) if tool.needs_approval else McpCall(tool)


def unknown_tool(name: str, style: NameStyle) -> HostedTool:
    """The tool of a call whose name the request does not have; its item looks like that of an MCP tool."""
    label, _, tool = name.partition(style.value)
    label, tool = function_name(label) or "unknown", (tool or name or "unknown")[:MAX_TOOL_NAME_CHARS]
    return HostedTool(name, None, label, tool, None, {}, "")


def _start(tool: HostedTool) -> McpStart:
    return McpStart(tool.server_label or "", tool.tool)


def _tools(entry: Json, field: str, listings: Listings, style: NameStyle) -> Iterable[HostedTool]:
    label = entry["server_label"]
    about = entry.get("server_description") if style is NameStyle.CHAT else None
    for tool in listings.get(label, ()):
        if is_offered(entry, tool):
            name = f"{label}{style.value}{tool['name']}"
            yield HostedTool(
                name=function_name(name) if style is NameStyle.CHAT else name,
                kind="mcp",
                server_label=label,
                tool=tool["name"],
                description=tool.get("description"),
                parameters=tool["input_schema"] or {"type": "object", "properties": {}},
                field=field,
                needs_approval=needs_approval(entry, tool),
                about=about,
            )
            about = None


def _shown_call(item: Item, style: NameStyle) -> ShownCall:
    if (call := item.get("call")) is not None and call["kind"] is None:  # the model invented it
        name = call["name"]
    else:
        name = f"{item['server_label']}{style.value}{item['name']}"
    if style is NameStyle.HARMONY:
        return ShownCall(name, item["arguments"])
    return ShownCall(function_name(name), as_object(item["arguments"], ascii_only=True))


def _shown_result(item: Item) -> str:
    return item.get("output") or _error_text(item.get("error")) or NO_RESULT


def _error_text(error: Any) -> str | None:
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return None
    if "message" in error:
        return str(error["message"])
    content = error.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def is_offered(spec: Item, tool: Item) -> bool:
    """Whether `allowed_tools` (names, a filter, or nothing) admits the tool."""
    allowed = spec.get("allowed_tools")
    if allowed is None:
        return True
    if isinstance(allowed, Mapping):
        return _matches(allowed, tool)
    return tool["name"] in allowed


def needs_approval(spec: Item, tool: Item) -> bool:
    """Whether `require_approval` demands approval. It does for tools that neither of two filters matches, and for those
    that `never` alone does not match."""
    rule = spec.get("require_approval") or "always"
    if not isinstance(rule, Mapping):
        return bool(rule != "never")
    always, never = rule.get("always"), rule.get("never")
    if always is not None and _matches(always, tool):
        return True
    if never is not None and _matches(never, tool):
        return False
    return never is not None or always is None


def _matches(rule: Item, tool: Item) -> bool:
    """An empty filter matches nothing."""
    names, read_only = rule.get("tool_names"), rule.get("read_only")
    if names is None and read_only is None:
        return False
    hint = bool((tool.get("annotations") or {}).get("readOnlyHint"))  # the server's own
    named = names is None or tool["name"] in names
    return named and (read_only is None or read_only is hint)


MCP = HostedToolFormat(
    kind=hosted_kinds.MCP,
    tools=_tools,
    is_chosen=lambda choice, tool: (
        tool.server_label == choice["server_label"] and choice.get("name") in (None, tool.tool)
    ),
    open_call=open_mcp_call,
    shown_call=_shown_call,
    shown_result=_shown_result,
)
