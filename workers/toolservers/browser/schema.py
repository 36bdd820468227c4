"""The tools as gpt-oss was trained on them, those of harmony's browser namespace, and the check of their arguments."""

from __future__ import annotations

from typing import Annotated, Any

from mcp_types import Tool, ToolAnnotations
from openai_harmony import ToolNamespaceConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.server_kind import SEARCH_META
from workers.toolservers.browser.errors import BrowserError

_HARMONY = ToolNamespaceConfig.browser()
INSTRUCTIONS = _HARMONY.description

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
    """The answer to tools/list."""
    hints = ToolAnnotations(read_only_hint=True, open_world_hint=True)
    return [
        Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.parameters,
            annotations=hints,
            meta={SEARCH_META: True} if ARGUMENTS.get(tool.name) is Search else None,
        )
        for tool in _HARMONY.tools
    ]
