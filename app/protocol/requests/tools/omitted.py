"""Tools that are left out: a request may have them, but no model sees them, and nobody checks their fields.

These are the types of LONGHAUL_OMIT_TOOLS, and a web search that must not access the web, or only what an index has:
Longhaul has nothing cached, and no index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from app.protocol.hosted_kinds import KIND_OF_TOOL, WEB_SEARCH
from app.protocol.item_types import ADDITIONAL_TOOLS, TOOL_SEARCH_OUTPUT
from app.protocol.requests.base import Part
from app.protocol.requests.validation import refused
from app.protocol.types import Json


def _check_sent(tool: Json) -> Json:
    """A client may send an `OmittedTool` itself."""
    if not isinstance(tool.get("type"), str):
        raise refused("Invalid '{path}': expected a tool with a 'type'.", "invalid_value")
    return tool


class OmittedTool(Part):
    """Takes the place of a tool that is left out, so that the others keep their positions."""

    type: Literal["omitted"]
    sent: Annotated[Json, AfterValidator(_check_sent)]
    """The tool as the client wrote it."""


def omit_tools(body: Json, omitted: Collection[str]) -> Json:
    """Returns the decoded body with an `OmittedTool` in place of each tool that is left out, in `tools` and in items.

    `omitted` are types; web search has one name there.
    """
    made = _without(body, omitted)
    for name in ("input", "items"):
        if isinstance(items := body.get(name), list) and any(map(_brings_tools, items)):
            made = {**made, name: [_without(item, omitted) if _brings_tools(item) else item for item in items]}
    return made


def _without(holder: Json, omitted: Collection[str]) -> Json:
    tools = holder.get("tools")
    if not isinstance(tools, list) or not any(_is_omitted(tool, omitted) for tool in tools):
        return holder
    kept = [{"type": "omitted", "sent": tool} if _is_omitted(tool, omitted) else tool for tool in tools]
    return {**holder, "tools": kept}


def _brings_tools(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") in (ADDITIONAL_TOOLS, TOOL_SEARCH_OUTPUT)


def _is_omitted(tool: Any, omitted: Collection[str]) -> bool:
    if not isinstance(tool, Mapping) or not isinstance(kind := tool.get("type"), str):
        return False
    name = KIND_OF_TOOL[kind].name if kind in KIND_OF_TOOL else kind
    offline = tool.get("external_web_access") is False or tool.get("indexed_web_access") is True
    return name in omitted or (name == WEB_SEARCH.name and offline)
