"""The kinds of hosted tools: one row for each, from which the other modules take their names.

A hosted tool runs on the server: a worker sends the call to an MCP server. docs/internals/where.md lists what to
touch when a kind is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from config.server_kind import ServerKind

WebSearchType = Literal["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]

CODE_OUTPUTS = "code_interpreter_call.outputs"
SEARCH_SOURCES = "web_search_call.action.sources"
"""Values of `include`."""


@dataclass(frozen=True, slots=True)
class HostedToolKind:
    """One kind of hosted tool."""

    name: str
    """What error messages call the tool."""
    tool_types: tuple[str, ...]
    """Values of `type` in `tools` and `tool_choice`: all name the same tool."""
    server_kind: ServerKind
    """The kind of MCP server that runs it."""
    call_type: str
    """The `type` of the item that a call makes. Its events are named after it: `response.<call_type>.in_progress`."""
    id_prefix: str
    """How the item's id begins."""
    text_field: str | None = None
    """The item field that the model writes piece by piece; None: the call is announced whole."""
    running_status: str | None = None
    """The item's status, and the event, while the call runs; None: `in_progress`, and no event."""
    has_failed_event: bool = False
    """Whether a failed call has an event of its own, as every completed one has."""
    include: str | None = None
    """The value of `include` without which results are not shown."""


CODE_INTERPRETER = HostedToolKind(
    name="code_interpreter",
    tool_types=("code_interpreter",),
    server_kind="python",
    call_type="code_interpreter_call",
    id_prefix="ci",
    text_field="code",
    running_status="interpreting",
    include=CODE_OUTPUTS,
)
WEB_SEARCH = HostedToolKind(
    name="web_search",
    tool_types=get_args(WebSearchType),
    server_kind="browser",
    call_type="web_search_call",
    id_prefix="ws",
    running_status="searching",
    include=SEARCH_SOURCES,
)
MCP = HostedToolKind(
    name="mcp",
    tool_types=("mcp",),
    server_kind="mcp",
    call_type="mcp_call",
    id_prefix="mcp",
    text_field="arguments",
    has_failed_event=True,
)

HOSTED_KINDS = (CODE_INTERPRETER, WEB_SEARCH, MCP)

KIND_OF_TOOL: Mapping[str, HostedToolKind] = MappingProxyType(
    {tool_type: kind for kind in HOSTED_KINDS for tool_type in kind.tool_types}
)
"""`type` of a tool, or of a tool choice -> its kind."""

KIND_OF_CALL: Mapping[str, HostedToolKind] = MappingProxyType({kind.call_type: kind for kind in HOSTED_KINDS})
"""`type` of an item -> its kind."""

HOSTED_INCLUDES = tuple(kind.include for kind in HOSTED_KINDS if kind.include is not None)
"""Values of `include` that show results of hosted tools."""
