"""What the model may call on the server itself: its tools by the names that the model knows them by.

    tool of the request    chat models                            harmony
    code_interpreter       python                                 python
    web_search             browser_search, _open, _find           browser.search, .open, .find
    mcp                    <server_label>__<tool>                 <server_label>.<tool>

A chat model's names are those of functions (letters, digits, `_` and `-`), beside the client's own functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from app.protocol.hosted_kinds import KIND_OF_TOOL, WEB_SEARCH
from workers.engine.base import InvalidSampling
from workers.formats.calls.permission import is_offered, needs_approval

Json = dict[str, Any]

PYTHON = "python"
SEARCH, OPEN, FIND = BROWSER = ("search", "open", "find")


_ACTIONS = {"search": SEARCH, "open_page": OPEN, "find_in_page": FIND}
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MOST_LETTERS = 64
"""Of a function's name, and of a server's label."""
_MOST_TOOL_LETTERS = 256


class HostedKind(Enum):
    """Of a tool server: `config.tools.ToolServer.kind`."""

    PYTHON = "python"
    BROWSER = "browser"
    MCP = "mcp"
    NONE = "none"
    """No server's: the model made the tool up, and is told so."""


class NameStyle(Enum):
    """How the model's format writes the names of tools; the value joins a server's and a tool's."""

    CHAT = "__"
    HARMONY = "."


@dataclass(frozen=True, slots=True)
class HostedTool:
    """One tool that the server runs."""

    name: str
    """As the model knows it."""
    kind: HostedKind
    server_label: str | None
    """Of an MCP tool: what the request calls its server."""
    tool: str
    """Its name on the server."""
    description: str | None
    parameters: Mapping[str, Any]
    field: str
    """Where its sender wrote it (`tools[0]`)."""
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class HostedCall:
    """A call that the model made of such a tool."""

    name: str
    arguments: str
    """As the model wrote them."""
    kind: HostedKind
    server_label: str | None
    tool: str

    @classmethod
    def of(cls, tool: HostedTool, arguments: str) -> HostedCall:
        return cls(tool.name, arguments, tool.kind, tool.server_label, tool.tool)

    def as_json(self) -> Json:
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HostedCall:
        return cls(**{**value, "kind": HostedKind(value["kind"])})


HostedTools = Mapping[str, HostedTool]
"""By the names that the model knows them by, in the order of the request's tools."""


def hosted_tools_of(
    request: Mapping[str, Any], listings: Mapping[str, Sequence[Json]], style: NameStyle
) -> dict[str, HostedTool]:
    """The tools of a stored request that run on the server; `listings` has what MCP servers listed, by label.

    Raises InvalidSampling where two tools would have the same name.
    """
    found: dict[str, HostedTool] = {}
    taken = {tool["name"]: f"tools[{place}]" for place, tool in enumerate(request["tools"]) if "name" in tool}
    for place, spec in enumerate(request["tools"]):
        for tool in _tools(spec, f"tools[{place}]", listings, style):
            other = taken.get(tool.name) if style is NameStyle.CHAT else None
            if other is None and tool.name in found:
                other = found[tool.name].field
            if other is not None:
                raise InvalidSampling(f"{tool.field} and {other} would both be called {tool.name!r} by this model")
            found[tool.name] = tool
    return found


def chosen_names(choice: Mapping[str, Any], hosted: HostedTools) -> frozenset[str]:
    """The names that an object of `tool_choice`, or of its allowed tools, stands for: none where it is a client's."""
    return frozenset(tool.name for tool in hosted.values() if _is_chosen(choice, tool))


def unknown_tool(name: str, style: NameStyle) -> HostedTool:
    """What a call is of whose name no tool of the request has: it is shown as one of an MCP server's tool."""
    label, _, tool = name.partition(style.value)
    label, tool = _as_function(label) or "unknown", (tool or name or "unknown")[:_MOST_TOOL_LETTERS]
    return HostedTool(name, HostedKind.NONE, label, tool, None, {}, "")


def action_of(tool: str, arguments: str) -> Json:
    """The `action` of a web_search_call, as far as the arguments of its call tell."""
    given = arguments_of(arguments) or {}
    if tool == OPEN:
        url = given.get("id")
        return {"type": "open_page", "url": url if isinstance(url, str) else None}
    if tool == FIND:
        return {"type": "find_in_page", "pattern": _text(given.get("pattern")), "url": ""}
    query = _text(given.get("query"))
    return {"type": "search", "query": query, "queries": [query]}


def chat_name(item: Mapping[str, Any]) -> str:
    """What a chat model knows the tool by that this item is a call of."""
    kind, call = item["type"], item.get("call") or {}
    if call.get("kind") == HostedKind.NONE.value:
        return _as_function(call["name"])
    if kind == "code_interpreter_call":
        return PYTHON
    if kind == "web_search_call":
        return f"browser_{_ACTIONS.get(item['action']['type'], SEARCH)}"
    return _as_function(f"{item['server_label']}{NameStyle.CHAT.value}{item['name']}")


def arguments_of(text: str) -> Json | None:
    """A call's arguments; None where they are no JSON object. No text is an empty one."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _as_function(name: str) -> str:
    return _NO_NAME.sub("_", name)[:_MOST_LETTERS]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_chosen(choice: Mapping[str, Any], tool: HostedTool) -> bool:
    kind = choice["type"]
    if kind == "mcp":
        name = choice.get("name")
        return tool.server_label == choice["server_label"] and name in (None, tool.tool)
    return kind in KIND_OF_TOOL and KIND_OF_TOOL[kind].server_kind == tool.kind.value


def _tools(spec: Json, field: str, listings: Mapping[str, Sequence[Json]], style: NameStyle) -> Iterator[HostedTool]:
    kind = spec["type"]
    if kind == "code_interpreter":
        yield HostedTool(PYTHON, HostedKind.PYTHON, None, PYTHON, _PYTHON_DESCRIPTION, _PYTHON_PARAMETERS, field)
    elif kind in WEB_SEARCH.tool_types:
        for tool, (description, parameters) in _BROWSER_TOOLS.items():
            name = "_".join(("browser", tool)) if style is NameStyle.CHAT else f"browser.{tool}"
            yield HostedTool(name, HostedKind.BROWSER, None, tool, description, parameters, field)
    elif kind == "mcp":
        yield from _listed(spec, field, listings.get(spec["server_label"], ()), style)


def _listed(spec: Json, field: str, listing: Iterable[Json], style: NameStyle) -> Iterator[HostedTool]:
    label = spec["server_label"]
    for tool in listing:
        if is_offered(spec, tool):
            name = f"{label}{style.value}{tool['name']}"
            yield HostedTool(
                name=_as_function(name) if style is NameStyle.CHAT else name,
                kind=HostedKind.MCP,
                server_label=label,
                tool=tool["name"],
                description=tool.get("description"),
                parameters=tool["input_schema"] or {"type": "object", "properties": {}},
                field=field,
                needs_approval=needs_approval(spec, tool),
            )


_PYTHON_DESCRIPTION = (
    "Runs Python code and returns what it prints, and the value of its last line. "
    "Variables, imports and files stay for later calls of the same answer. There is no internet."
)
_PYTHON_PARAMETERS: Json = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The code to run."}},
    "required": ["code"],
    "additionalProperties": False,
}
_CURSOR = {"type": "integer", "description": "Number of a page shown before; the newest one where it is left out."}
_BROWSER_TOOLS: Mapping[str, tuple[str, Json]] = {
    SEARCH: (
        "Searches the web. Shows numbered results, which `open` takes by their numbers.",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "topn": {"type": "integer", "description": "How many results to show."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    ),
    OPEN: (
        "Opens a page: a link by its number on a page shown before, or a URL. Cite what you use from it as "
        "【cursor†L1-L2】, with the page's cursor and the numbers of its lines.",
        {
            "type": "object",
            "properties": {
                "id": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "description": "Number of a link, or a URL; without it the page is shown from another line.",
                },
                "cursor": _CURSOR,
                "loc": {"type": "integer", "description": "The first line to show."},
                "num_lines": {"type": "integer", "description": "How many lines to show."},
            },
            "additionalProperties": False,
        },
    ),
    FIND: (
        "Finds exact text in a page shown before.",
        {
            "type": "object",
            "properties": {"pattern": {"type": "string", "description": "The text."}, "cursor": _CURSOR},
            "required": ["pattern"],
            "additionalProperties": False,
        },
    ),
}
