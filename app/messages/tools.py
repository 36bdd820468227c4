"""The `tools`, the `mcp_servers` and the `tool_choice` of a Messages request, as clients send them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.protocol.requests.base import ByType, Part, RequestModel, check_type
from app.protocol.requests.fields import MAX_TOOLS
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import wrong_kind
from app.protocol.types import Json


class OwnTool(Part):
    """A tool in the client's own code. With `strict`, the input of a call always fits `input_schema`."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: Json
    strict: bool | None = None
    defer_loading: bool | None = None


class SearcherPlace(Part):
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class ServerTool(Part):
    """A search of the web, or code that runs in a sandbox; the other fields are those of a search."""

    type: str
    name: str
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: SearcherPlace | None = None


class ToolsetDefault(Part):
    enabled: bool | None = None


class McpToolset(Part):
    """The tools of an MCP server that the model may call."""

    type: Literal["mcp_toolset"]
    mcp_server_name: str
    default_config: ToolsetDefault | None = None
    configs: dict[str, ToolsetDefault] | None = None


class McpConfiguration(Part):
    allowed_tools: list[str] | None = None
    enabled: bool | None = None


class McpServer(Part):
    """An MCP server that the operator allows."""

    type: Literal["url"]
    name: str
    url: str
    authorization_token: Annotated[str | None, Field(repr=False)] = None
    tool_configuration: McpConfiguration | None = None


HOSTED = {"web_search": "web_search", "code_execution": "code_interpreter"}
"""The server tools that are hosted, by the names that Anthropic's API gives them: the types that responses have."""
_OWN = "declare it as a tool of your own, with a 'name' and an 'input_schema'"
_SEARCH = "leave it and 'defer_loading' out, or search with a tool of your own"
REFUSED_TOOLS = {
    "advisor": "this server has no such tool",
    "bash": _OWN,
    "browser_toolset": _OWN,
    "computer": _OWN,
    "computer_toolset": _OWN,
    "memory": _OWN,
    "text_editor": _OWN,
    "tool_search_tool_bm25": _SEARCH,
    "tool_search_tool_regex": _SEARCH,
    "web_fetch": "send a tool of type 'web_search_20250305', which opens pages, too",
}
"""Tools of Anthropic's that are known, and what to do instead."""
_DATED = re.compile(r"(?P<name>[a-z_0-9]+?)(?:_\d{8})?")


def hosted_as(kind: str) -> str | None:
    """Returns the type that responses have for a tool of this type, if the server runs it."""
    return HOSTED.get(undated(kind))


def undated(kind: str) -> str:
    found = _DATED.fullmatch(kind)
    return kind if found is None else found["name"]


def _tag_of(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else value.type
    return f"<{kind or 'custom'}>" if kind in (None, "custom", "mcp_toolset", "omitted") else "<server>"


def _check_tool(value: Any) -> Any:
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    kind = value.get("type")
    if kind not in (None, "omitted") and not (isinstance(kind, str) and hosted_as(kind)):
        refused = {kind: advice} if isinstance(kind, str) and (advice := REFUSED_TOOLS.get(undated(kind))) else {}
        check_type(kind, ("custom", "mcp_toolset", *(f"{name}_..." for name in HOSTED)), refused)
    return value


Tool = Annotated[
    OwnTool | ServerTool | McpToolset | SkipJsonSchema[OmittedTool],
    ByType(tags={OwnTool: ("custom",), ServerTool: ("server",)}, tag=_tag_of, check=_check_tool),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
McpServers = Annotated[list[McpServer], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ToolChoice(RequestModel):
    """Whether, and what, the model must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None
