"""The tools as gpt-oss was trained on them: names, texts and parameters of harmony's browser namespace."""

from __future__ import annotations

from typing import Annotated, Any

from mcp_types import Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.toolservers.browser.errors import BrowserError

INSTRUCTIONS = """\
Tool for browsing.
The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
Cite information from the tool using the following format:
`【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
Do not quote more than 10 words directly from the tool output.
sources=web (default: web)"""

SEARCH = "Searches for information related to `query` and displays `topn` results."
OPEN = """\
Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.
Valid link ids are displayed with the formatting: `【{id}†.*】`.
If `cursor` is not provided, the most recent page is implied.
If `id` is a string, it is treated as a fully qualified URL associated with `source`.
If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most \
relevant passage, if available.
Use this function without `id` to scroll to a new location of an opened page."""
FIND = "Finds exact matches of `pattern` in the current page, or the page given by `cursor`."

Query = Annotated[str, Field(min_length=1, max_length=2000)]
Pattern = Annotated[str, Field(min_length=1, max_length=300)]
FromMinusOne = Annotated[int, Field(ge=-1, le=2**31)]
"""-1 means not given."""


class Arguments(BaseModel):
    """The arguments of a call; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Search(Arguments):
    query: Query
    topn: Annotated[int, Field(ge=1)] = 10
    source: str | None = None


class Open(Arguments):
    id: FromMinusOne | Annotated[str, Field(min_length=1)] = -1
    cursor: FromMinusOne = -1
    loc: FromMinusOne = -1
    num_lines: FromMinusOne = -1
    view_source: bool = False
    source: str | None = None


class Find(Arguments):
    pattern: Pattern
    cursor: FromMinusOne = -1


ARGUMENTS: dict[str, type[Search | Open | Find]] = {"search": Search, "open": Open, "find": Find}


def parse(tool: str, arguments: dict[str, Any]) -> Search | Open | Find:
    """The arguments, checked. Raises BrowserError, which names the first error."""
    if tool not in ARGUMENTS:
        raise BrowserError(f"There is no tool `{tool[:80]}`: there are {_listed(ARGUMENTS)}.")
    try:
        parsed = ARGUMENTS[tool].model_validate(arguments)
    except ValidationError as error:
        raise BrowserError(_first_error(error, tool)) from None
    if isinstance(parsed, Search | Open) and parsed.source not in (None, "", "web"):
        raise BrowserError("There is no such `source`: the only one is `web`.")
    return parsed


def _first_error(error: ValidationError, tool: str) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0])[:80] if first["loc"] else "arguments"
    if first["type"] == "extra_forbidden":
        return f"`{tool}` takes no `{name}`: it takes {_listed(ARGUMENTS[tool].model_fields)}."
    return f"`{name}` of `{tool}`: {first['msg'][:1].lower()}{first['msg'][1:]}."


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def tools() -> list[Tool]:
    """The answer to tools/list. A test checks that the schemas equal harmony's."""
    number, text = {"type": "number", "default": -1}, {"type": "string"}
    search = {"query": text, "topn": {"type": "number", "default": 10}, "source": text}
    opening = {
        "id": {"type": ["number", "string"], "default": -1},
        **dict.fromkeys(("cursor", "loc", "num_lines"), number),
        "view_source": {"type": "boolean", "default": False},
        "source": text,
    }
    find = {"pattern": text, "cursor": number}
    return [
        _tool("search", SEARCH, search, ["query"]),
        _tool("open", OPEN, opening, []),
        _tool("find", FIND, find, ["pattern"]),
    ]


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> Tool:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    hints = ToolAnnotations(read_only_hint=True, open_world_hint=True)
    return Tool(name=name, description=description, input_schema=schema, annotations=hints)
