"""Hosted tools and the model's calls of them; `hosted_formats.py` has the kinds of hosted tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from app.protocol.types import Json

_NOT_IN_FUNCTION_NAMES = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME_CHARS = 64
"""Of a function's name, and of a server's label."""
MAX_TOOL_NAME_CHARS = 256


class McpServerKind(Enum):
    """The kind of MCP server that runs a call: `config.tools.McpServer.kind`."""

    PYTHON = "python"
    BROWSER = "browser"
    MCP = "mcp"
    NONE = "none"
    """No server has such a tool: the model invented it, and its call fails."""


class NameStyle(Enum):
    """How the model's format names tools; the value joins the names of a server and its tool."""

    CHAT = "__"
    HARMONY = "."


@dataclass(frozen=True, slots=True)
class HostedTool:
    """One tool that the server runs."""

    name: str
    """The name by which the model calls it."""
    kind: McpServerKind
    server_label: str | None
    """For an MCP tool: the label of its server in the request."""
    tool: str
    """Its name on the server."""
    description: str | None
    parameters: Mapping[str, Any]
    field: str
    """Its position in the request (`tools[0]`), for messages."""
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class HostedCall:
    """The model's call of a hosted tool."""

    name: str
    arguments: str
    """As the model wrote them."""
    kind: McpServerKind
    server_label: str | None
    tool: str

    @classmethod
    def of(cls, tool: HostedTool, arguments: str) -> HostedCall:
        return cls(tool.name, arguments, tool.kind, tool.server_label, tool.tool)

    def as_json(self) -> Json:
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HostedCall:
        return cls(**{**value, "kind": McpServerKind(value["kind"])})


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
