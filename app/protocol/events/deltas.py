"""Deltas: the inputs of the event machine. The model writes them piece by piece, or a hosted tool gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from app.protocol.hosted_kinds import HostedToolKind
from app.protocol.local_kinds import LocalToolKind
from app.protocol.usage import Usage


class FinishReason(Enum):
    STOP = "stop"
    """The model ended its turn (an end token or a stop string)."""
    LENGTH = "length"
    """Cut by `max_output_tokens` or by the context length."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The base of all deltas. The event table (table.py) knows a delta by its class."""


@dataclass(frozen=True, slots=True)
class Piece(Delta):
    """Characters of what the model writes; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Text(Piece):
    """Characters of the answer."""

    logprobs: tuple[dict[str, Any], ...] = ()
    phase: Literal["commentary", "final_answer"] | None = None
    """The message's phase, if the model's format tells a preamble from an answer. Each phase is its own message."""


@dataclass(frozen=True, slots=True)
class Reasoning(Piece):
    """Characters of the model's raw reasoning."""


@dataclass(frozen=True, slots=True)
class Refusal(Piece):
    """Characters of a refusal, if the model's format tells a refusal from an answer."""


@dataclass(frozen=True, slots=True)
class Annotation(Delta):
    """A citation in the open text part."""

    annotation: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallStart(Delta):
    """A function call begins; its arguments follow as `CallArguments`."""

    name: str
    namespace: str | None = None
    """The namespace of the function, if the client gave it one."""


@dataclass(frozen=True, slots=True)
class CallArguments(Piece):
    """Characters of the open function call's arguments (JSON text)."""


@dataclass(frozen=True, slots=True)
class CustomStart(Delta):
    """A custom tool call begins; its input follows as `CustomInput`."""

    name: str
    namespace: str | None = None
    """The namespace of the tool, if the client gave it one."""


@dataclass(frozen=True, slots=True)
class CustomInput(Piece):
    """Characters of the open custom tool call's input."""


@dataclass(frozen=True, slots=True)
class CallCut(Delta):
    """The open call of the client's ends, and is not whole: its arguments are no JSON object, or half an input."""


@dataclass(frozen=True, slots=True)
class ToolSearch(Delta):
    """A whole call of a tool search."""

    arguments: dict[str, Any]
    found: tuple[dict[str, Any], ...] | None = None
    """The tools that the server found; None: the client searches."""


@dataclass(frozen=True, slots=True)
class LocalCall(Delta):
    """A call of a local tool, announced whole."""

    kind: LocalToolKind
    fields: dict[str, Any]
    """The item's `action` or `operation`."""
    whole: bool = True
    """Whether the arguments were those of a call; else the item has what there was of them."""


@dataclass(frozen=True, slots=True)
class CodeStart(Delta):
    """A call of the code interpreter begins; its code follows as `CodeText`."""

    name: str
    """What the model calls the tool."""


@dataclass(frozen=True, slots=True)
class CodeText(Piece):
    """Characters of the open call's code."""


@dataclass(frozen=True, slots=True)
class McpStart(Delta):
    """A call of an MCP server's tool begins; its arguments follow as `McpArguments`."""

    server_label: str
    name: str
    approval_request_id: str | None = None
    """Id of the approval request that the client answered with yes."""


@dataclass(frozen=True, slots=True)
class McpArguments(Piece):
    """Characters of the open MCP call's arguments (JSON text)."""


@dataclass(frozen=True, slots=True)
class WholeCall(Delta):
    """A call of a hosted tool that is announced whole: its kind has no `text_field`."""

    kind: HostedToolKind
    name: str
    """What the model calls the tool."""
    arguments: str
    fields: dict[str, Any]
    """The item's fields, as far as the arguments tell: the `action` of a web search."""


@dataclass(frozen=True, slots=True)
class Approval(Delta):
    """A whole call of an MCP server's tool that the client must allow first."""

    server_label: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Listing(Delta):
    """The worker asks an MCP server for its tools."""

    server_label: str


@dataclass(frozen=True, slots=True)
class Listed(Delta):
    """The MCP server's answer: its tools, or an error."""

    index: int
    """Position of the item in the output."""
    tools: tuple[dict[str, Any], ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEnd(Delta):
    """The model ended its turn; the turn's calls of hosted tools begin."""


@dataclass(frozen=True, slots=True)
class ToolEnded(Delta):
    """A call of a hosted tool has ended."""

    index: int
    """Position of the item in the output."""
    ok: bool
    fields: dict[str, Any]
    """The fields that the item gains: `outputs`, `action`, or `output` and `error`."""


@dataclass(frozen=True, slots=True)
class CompactionStart(Delta):
    """The model begins a summary of its context."""


@dataclass(frozen=True, slots=True)
class Compacting(Delta):
    """The model wrote some of the summary, which no event shows."""


@dataclass(frozen=True, slots=True)
class Compacted(Delta):
    """The summary is complete."""

    encrypted_content: str
    """The summary, sealed."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The model is done."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    messages: Mapping[str, Any] = field(default_factory=dict)
    """`input_messages` and `output_messages` for the response object, if the request asked for them."""
    incomplete: str | None = None
    """Why the response is not completed; the machine finds out."""
    counted: bool = False
    """The prompt was only counted: the model was asked for no answer."""
