"""The tools that the script's prompts offer."""

from __future__ import annotations

from typing import Any

from workers.engine.output_format import Tool
from workers.formats.calls.string_argument import CUSTOM_TOOL_PARAMETERS
from workers.formats.harmony.prompt import Namespace


def _tool(name: str, description: str, parameter: str) -> Tool:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
        "additionalProperties": False,
    }
    return Tool(name, description, schema, False, "")


WEATHER = _tool("get_weather", "Current weather of a city.", "city")
LOOKUP = _tool("lookup", "Looks something up in a handbook.", "query")
SHELL = Tool("shell", "Runs a shell command.", CUSTOM_TOOL_PARAMETERS, False, "")
"""A custom tool."""
FUNCTIONS = (WEATHER, LOOKUP, SHELL)

FIND_BOOK = _tool("find_book", "Finds a book of the library.", "topic")
LEND_BOOK = _tool("lend_book", "Lends a book of the library.", "title")
LIBRARY = Namespace("library", None, (FIND_BOOK, LEND_BOOK))
