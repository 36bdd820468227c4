"""The tools that the script's conversations offer, as chat-completions function tools."""

from __future__ import annotations

from typing import Any

from tests.models.demo.conversation import ToolSet

Tool = dict[str, Any]


def _tool(name: str, description: str, parameter: str) -> Tool:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = _tool("get_weather", "Current weather of a city.", "city")
SEARCH = _tool("search", "Looks something up on the web.", "query")
CALCULATE = _tool("calculate", "Evaluates an arithmetic expression.", "expression")

TOOLS: tuple[Tool, ...] = (WEATHER, SEARCH, CALCULATE)
NEEDED: dict[ToolSet, Tool] = {"weather": WEATHER, "search": SEARCH}
