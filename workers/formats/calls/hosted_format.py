"""What prompts and answers must know of one kind of hosted tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.hosted_kinds import HostedToolKind
from app.protocol.types import Json
from workers.formats.calls.hosted import HostedTool, NameStyle
from workers.formats.calls.open_calls import OpenCall

Item = Mapping[str, Any]
Listings = Mapping[str, Sequence[Json]]
"""The tools of MCP servers by label, as in an mcp_list_tools item."""

NO_RESULT = "There is no result: the call was not carried out, or what it gave is not kept any more."


@dataclass(frozen=True, slots=True)
class HarmonyCall:
    name: str
    """The recipient of the message."""
    text: str
    content_type: str


@dataclass(frozen=True, slots=True)
class HostedToolFormat:
    """How prompts and answers show one kind of hosted tool; `hosted_formats.FORMATS` lists them all."""

    kind: HostedToolKind
    tools: Callable[[Json, str, Listings, NameStyle], Iterable[HostedTool]]
    """The tools of an entry of `tools`, from the entry, its position and what MCP servers listed."""
    is_chosen: Callable[[Mapping[str, Any], HostedTool], bool]
    """Whether an object of `tool_choice` with one of its types means this tool."""
    open_call: Callable[[HostedTool], OpenCall]
    chat_name: Callable[[Item], str]
    """The name by which a chat model would have made the call of an item."""
    chat_arguments: Callable[[Item], str]
    """The arguments of the call of an item, as a JSON object."""
    harmony_call: Callable[[Item], HarmonyCall]
    shown_result: Callable[[Item], str]
    """The result as an item shows it; for items without `call`, which clients may write themselves."""
