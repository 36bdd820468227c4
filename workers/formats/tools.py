"""The tools of a request: what the model is shown, and what it may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.engine.dialect import Choice, Form, Json, Tool
from workers.formats.custom import PARAMETERS

_CHOICES = {"none": Choice.NONE, "auto": Choice.AUTO, "required": Choice.REQUIRED}


@dataclass(frozen=True, slots=True)
class Tools:
    """`tool_choice` and `tools`, understood. With choice NONE the model is shown no tools, and calls none."""

    choice: Choice = Choice.NONE
    all: tuple[Tool, ...] = ()
    allowed: tuple[Tool, ...] = ()
    custom: frozenset[str] = frozenset()
    """Names of custom tools."""
    single: bool = False

    @property
    def closed(self) -> bool:
        """The model may see tools that it may not call."""
        return self.choice is not Choice.NAMED and len(self.allowed) < len(self.all)

    @property
    def functions(self) -> frozenset[str]:
        """Names of functions that may be called."""
        return frozenset(tool.name for tool in self.allowed) - self.custom

    @property
    def custom_allowed(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.allowed) & self.custom


def tools_of(request: Mapping[str, Any]) -> Tools:
    """What a stored request (app/protocol/request.py) says of tools."""
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(request["tools"]))
    custom = frozenset(tool["name"] for tool in request["tools"] if tool["type"] == "custom")
    choice, names = _choice(request["tool_choice"])
    allowed = tuple(tool for tool in tools if names is None or tool.name in names)
    if choice is Choice.NONE or not allowed:
        return Tools()
    single = choice is Choice.NAMED or not request["parallel_tool_calls"]
    return Tools(choice, tools, allowed, custom, single)


def shown(tools: Sequence[Tool]) -> list[Json]:
    """As chat templates take them."""
    return [tool.as_function() for tool in tools]


def form_of(request: Mapping[str, Any], tools: Tools, template_args: Mapping[str, Any]) -> Form:
    """What the engine must know of the answer's form."""
    extra = request["extra"]
    stop_tokens = () if extra.get("include_stop_str_in_output") else extra.get("stop_token_ids") or ()
    return Form(
        tools=tools.allowed,
        choice=tools.choice,
        single=tools.single,
        closed=tools.closed,
        text_format=request["text"]["format"],
        template_args=template_args,
        stop_tokens=tuple(stop_tokens),
        special_tokens=extra.get("skip_special_tokens") is False,
    )


def _choice(choice: Any) -> tuple[Choice, frozenset[str] | None]:
    """The choice, and the names that may be called (None: all)."""
    if isinstance(choice, str):
        return _CHOICES[choice], None
    if choice["type"] == "allowed_tools":
        return _CHOICES[choice["mode"]], frozenset(tool["name"] for tool in choice["tools"])
    return Choice.NAMED, frozenset({choice["name"]})


def _tool(tool: Json, field: str) -> Tool:
    if tool["type"] == "function":
        return Tool(tool["name"], tool.get("description"), tool.get("parameters"), bool(tool.get("strict")), field)
    made = tool.get("format") or {"type": "text"}
    if made["type"] == "text":
        return Tool(tool["name"], tool.get("description"), PARAMETERS, False, field)
    syntax, definition = made["syntax"], made["definition"]
    rule = f"Its input must fit this grammar ({syntax}):\n{definition}"
    description = "\n\n".join(filter(None, (tool.get("description"), rule)))
    return Tool(tool["name"], description, PARAMETERS, True, field, grammar=(syntax, definition))
