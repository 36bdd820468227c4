"""mcp: the tools of MCP servers that a request names, and tools that the model invented."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol import hosted_kinds
from app.protocol.events.deltas import Approval, Delta, McpArguments, McpStart
from app.protocol.types import Json
from workers.formats.calls.hosted import (
    MAX_TOOL_NAME_CHARS,
    HostedTool,
    McpServerKind,
    NameStyle,
    arguments_of,
    as_object,
    function_name,
)
from workers.formats.calls.hosted_format import NO_RESULT, HarmonyCall, HostedToolFormat, Item, Listings
from workers.formats.calls.open_calls import OpenCall, OpenHostedCall
from workers.formats.calls.permission import is_offered, needs_approval


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
    return HostedTool(name, McpServerKind.NONE, label, tool, None, {}, "")


def _start(tool: HostedTool) -> McpStart:
    return McpStart(tool.server_label or "", tool.tool)


def _tools(entry: Json, field: str, listings: Listings, style: NameStyle) -> Iterable[HostedTool]:
    label = entry["server_label"]
    for tool in listings.get(label, ()):
        if is_offered(entry, tool):
            name = f"{label}{style.value}{tool['name']}"
            yield HostedTool(
                name=function_name(name) if style is NameStyle.CHAT else name,
                kind=McpServerKind.MCP,
                server_label=label,
                tool=tool["name"],
                description=tool.get("description"),
                parameters=tool["input_schema"] or {"type": "object", "properties": {}},
                field=field,
                needs_approval=needs_approval(entry, tool),
            )


def _is_chosen(choice: Mapping[str, Any], tool: HostedTool) -> bool:
    return tool.server_label == choice["server_label"] and choice.get("name") in (None, tool.tool)


def _chat_name(item: Item) -> str:
    return function_name(f"{item['server_label']}{NameStyle.CHAT.value}{item['name']}")


def _harmony_call(item: Item) -> HarmonyCall:
    call = item.get("call") or {}
    invented = call.get("kind") == McpServerKind.NONE.value
    name = call["name"] if invented else f"{item['server_label']}{NameStyle.HARMONY.value}{item['name']}"
    return HarmonyCall(name, item["arguments"], "json")


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


MCP = HostedToolFormat(
    kind=hosted_kinds.MCP,
    tools=_tools,
    is_chosen=_is_chosen,
    open_call=open_mcp_call,
    chat_name=_chat_name,
    chat_arguments=lambda item: as_object(item["arguments"], ascii_only=True),
    harmony_call=_harmony_call,
    shown_result=_shown_result,
)
