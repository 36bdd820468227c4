"""What a model says, piece by piece: the inputs of the event state machine (`stream.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from app.protocol.usage import Usage


class FinishReason(Enum):
    STOP = "stop"
    """The model ended its turn (an end token or a stop string)."""
    LENGTH = "length"
    """Cut by `max_output_tokens` or by the context length."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters of the answer; never empty."""

    text: str
    logprobs: tuple[dict[str, Any], ...] = ()
    phase: Literal["commentary", "final_answer"] | None = None
    """Of the message, where the model's format tells a preamble from an answer: one of another phase is a message of
    its own."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Characters of the model's raw reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Characters of a refusal, where the model's format tells one from an answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """A citation in the open text part."""

    annotation: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallStart:
    """A function call begins; its arguments follow as `CallArguments`."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Characters of the open function call's arguments (JSON text); never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CustomStart:
    """A custom tool call begins; its input follows as `CustomInput`."""

    name: str


@dataclass(frozen=True, slots=True)
class CustomInput:
    """Characters of the open custom tool call's input; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CodeStart:
    """The model writes code for the server's own interpreter; it follows as `CodeText`."""

    name: str
    """What the model calls the tool."""


@dataclass(frozen=True, slots=True)
class CodeText:
    """Characters of the open call's code; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class McpStart:
    """A call of a tool of an MCP server begins; its arguments follow as `McpArguments`."""

    server_label: str
    name: str
    approval_request_id: str | None = None
    """The request by which the client allowed it."""


@dataclass(frozen=True, slots=True)
class McpArguments:
    """Characters of the open MCP call's arguments (JSON text); never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class WebSearch:
    """A whole call of the server's browser: `action` is that of the item, as far as the arguments tell."""

    name: str
    arguments: str
    action: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Approval:
    """A whole call of an MCP server's tool that the client has to allow first."""

    server_label: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The server asks an MCP server for its tools."""

    server_label: str


@dataclass(frozen=True, slots=True)
class Listed:
    """What it answered: tools, or an error."""

    index: int
    """The item's place in the output."""
    tools: tuple[dict[str, Any], ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The model ended its turn, and the calls that are the server's to run begin."""


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call that the server ran is over."""

    index: int
    """The item's place in the output."""
    ok: bool
    fields: dict[str, Any]
    """What the item gains: `outputs`, `action`, or `output` and `error`."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The model is done."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    messages: Mapping[str, Any] = field(default_factory=dict)
    """What the response object shows of the model's own messages, where it was asked for: `input_messages` and
    `output_messages`."""


Delta = (
    Text
    | Reasoning
    | Refusal
    | Annotation
    | CallStart
    | CallArguments
    | CustomStart
    | CustomInput
    | CodeStart
    | CodeText
    | McpStart
    | McpArguments
    | WebSearch
    | Approval
    | Listing
    | Listed
    | TurnEnd
    | ToolEnded
)
