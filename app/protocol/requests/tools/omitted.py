"""Tools that are left out: a request may have them, but no model sees them.

These are the types of LONGHAUL_OMIT_TOOLS, and a web search that must not access the web, or only what an index has:
Longhaul has nothing cached, and no index.

Such a tool is not checked: a client may send fields with it that are not supported. An `OmittedTool` takes its place in
the body, so that the others keep their positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.hosted_kinds import KIND_OF_TOOL, WEB_SEARCH
from app.protocol.item_types import ADDITIONAL_TOOLS, TOOL_SEARCH_OUTPUT
from app.protocol.requests.base import RequestModel
from app.protocol.types import Json


class OmittedTool(RequestModel):
    """Stands for a tool that is left out. No client can send one: it is no JSON."""

    type: str = "<omitted>"
    sent: Json
    """The tool as the client wrote it."""


def omit_tools(body: Json, omitted: Collection[str]) -> Json:
    """Returns the decoded body with an `OmittedTool` in place of each tool that is left out, in `tools` and in items.

    `omitted` are types; web search has one name there.
    Raises InvalidRequest if `tool_choice` names a tool that is left out.
    """
    made = _without(body, omitted)
    left_out = {*omitted, *(_type_of(tool.sent) for tool in _tools(made) if isinstance(tool, OmittedTool))}
    for where, choice in _choices(body.get("tool_choice")):
        if _type_of(choice) in left_out:
            where = f"{where}.type"
            message = (
                f"Invalid '{where}': this server leaves out tools of type '{choice['type']}', so none can be chosen."
            )
            raise InvalidRequest(message, where, "tool_omitted")
    for name in ("input", "items"):
        if isinstance(items := body.get(name), list) and any(map(_brings_tools, items)):
            made = {**made, name: [_without(item, omitted) if _brings_tools(item) else item for item in items]}
    return made


def _without(holder: Json, omitted: Collection[str]) -> Json:
    """The object with an `OmittedTool` in place of each tool that is left out."""
    tools = _tools(holder)
    if not any(_is_omitted(tool, omitted) for tool in tools):
        return holder
    return {**holder, "tools": [OmittedTool(sent=tool) if _is_omitted(tool, omitted) else tool for tool in tools]}


def _tools(holder: Json) -> list[Any]:
    tools = holder.get("tools")
    return tools if isinstance(tools, list) else []


def _brings_tools(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") in (ADDITIONAL_TOOLS, TOOL_SEARCH_OUTPUT)


def as_sent(value: Any) -> Any:
    """What orjson writes for an `OmittedTool`."""
    if isinstance(value, OmittedTool):
        return value.sent
    raise TypeError


def _is_omitted(tool: Any, omitted: Collection[str]) -> bool:
    found = _type_of(tool)
    if found in omitted:
        return True
    return found == WEB_SEARCH.name and (
        tool.get("external_web_access") is False or tool.get("indexed_web_access") is True
    )


def _type_of(tool: Any) -> str | None:
    """The type of a tool, or of a choice, as LONGHAUL_OMIT_TOOLS has it."""
    sent = tool.get("type") if isinstance(tool, Mapping) else None
    if not isinstance(sent, str):
        return None
    kind = KIND_OF_TOOL.get(sent)
    return sent if kind is None else kind.name


def _choices(choice: Any) -> list[tuple[str, Any]]:
    """Each tool that a choice names, with its path; the choice is not checked yet."""
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        return [(f"tool_choice.tools[{index}]", tool) for index, tool in enumerate(choice["tools"])]
    return [("tool_choice", choice)]
