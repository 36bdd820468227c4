"""Hosted tools, the model's calls of them, and what prompts and answers must know of one kind of them.

`hosted_formats.py` has the kinds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.protocol.events.deltas import Delta
from app.protocol.hosted_kinds import HostedToolKind
from app.protocol.types import Json
from config.server_kind import ServerKind

_NOT_IN_FUNCTION_NAMES = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME_CHARS = 64
"""Longest name of a function, and longest label of a server."""
MAX_TOOL_NAME_CHARS = 256
NO_RESULT = "There is no result: the call was not carried out, or what it gave is not kept any more."

Item = Mapping[str, Any]
Listings = Mapping[str, Sequence[Json]]
"""The tools of MCP servers by label, as in an mcp_list_tools item."""


class NameStyle(Enum):
    """How the model's format names tools; the value joins the names of a server and its tool."""

    CHAT = "__"
    HARMONY = "."


@dataclass(frozen=True, slots=True)
class HostedTool:
    """One tool that the server runs."""

    name: str
    """The name by which the model calls it."""
    kind: ServerKind | None
    """The kind of MCP server that runs it; None: no server has it, the model invented it, and its call fails."""
    server_label: str | None
    """For an MCP tool: the label of its server in the request."""
    tool: str
    """The tool's name on the server."""
    description: str | None
    parameters: Mapping[str, Any]
    field: str
    """The tool's position in the request (`tools[0]`), for messages."""
    needs_approval: bool = False
    about: str | None = None
    """What the request says of its server; the first tool of the server has it, for models that know no servers."""


@dataclass(frozen=True, slots=True)
class HostedCall:
    """The model's call of a hosted tool."""

    name: str
    arguments: str
    """The arguments as the model wrote them."""
    kind: ServerKind | None
    server_label: str | None
    tool: str


HostedTools = Mapping[str, HostedTool]
"""By the names that the model uses, in the order of the request's tools."""


def function_name(name: str) -> str:
    """A name that chat models accept for a function: letters, digits, `_` and `-`."""
    return _NOT_IN_FUNCTION_NAMES.sub("_", name)[:MAX_NAME_CHARS]


def arguments_of(text: str) -> Json | None:
    """A call's arguments; None if they are no JSON object. Empty text is an empty object."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def as_object(arguments: str, *, ascii_only: bool = False) -> str:
    """Arguments as the JSON object that chat templates require; anything else becomes a string in one.

    Calls of MCP tools are `ascii_only`: a prompt must stay what it was for the tokens that are committed behind it.
    """
    if arguments_of(arguments) is not None:
        return arguments or "{}"
    return json.dumps({"arguments": arguments}, ensure_ascii=ascii_only)


class OpenCall:
    """A call that the model is writing; this one shows nothing."""

    hosted_call: HostedCall | None = None
    """The call that the server has to run; set by `finish`."""

    def __init__(self) -> None:
        self._arguments = ""

    def start(self) -> list[Delta]:
        return []

    def feed(self, text: str) -> list[Delta]:
        """Characters of its arguments."""
        self._arguments += text
        return []

    def finish(self, *, cut: bool) -> list[Delta]:
        """What was held back. `cut`: the model was interrupted, perhaps within the call."""
        return []


class OpenHostedCall(OpenCall):
    """The base of calls that the server runs."""

    def __init__(self, tool: HostedTool) -> None:
        super().__init__()
        self._tool = tool

    def finish(self, *, cut: bool) -> list[Delta]:
        tool = self._tool
        self.hosted_call = HostedCall(tool.name, self._arguments, tool.kind, tool.server_label, tool.tool)
        return []


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A call as a prompt shows it."""

    name: str
    text: str
    """The call's arguments; chat templates require a JSON object."""
    content_type: str = "json"
    """The call's content type in harmony."""


@dataclass(frozen=True, slots=True)
class HostedToolFormat:
    """How prompts and answers show one kind of hosted tool; `hosted_formats.FORMATS` lists them all."""

    kind: HostedToolKind
    tools: Callable[[Json, str, Listings, NameStyle], Iterable[HostedTool]]
    """The tools of an entry of `tools`, from the entry, its position and what MCP servers listed."""
    open_call: Callable[[HostedTool], OpenCall]
    shown_call: Callable[[Item, NameStyle], ShownCall]
    """The call of an item, as a model would have made it."""
    shown_result: Callable[[Item], str] = lambda _item: NO_RESULT
    """The result as an item shows it; for items without `call`, which clients may write themselves."""
    is_chosen: Callable[[Mapping[str, Any], HostedTool], bool] = lambda _choice, _tool: True
    """Whether an object of `tool_choice` with one of its types means this tool."""
