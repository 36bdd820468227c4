"""How a model says things: the form that a request asks for, and what turns text into deltas.

An engine's `output_format` knows its model's formats: what marks reasoning and tool calls, and the grammar
that holds an answer to a form. What is the same for all models is in `workers.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

from app.protocol.events.deltas import Delta

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Structured:
    """A grammar that holds the output to a form; made by a `Dialect`, in the engine's own words."""

    tag: str
    """A structural tag (xgrammar's JSON)."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """Of the prompt: where its reasoning ends, and the grammar sets in, depends on them."""


class ToolChoice(Enum):
    """What a request says of tool calls."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """One call, to the one tool there is."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool
    field: str
    """Where its sender wrote it (`tools[0]`)."""
    grammar: tuple[Literal["lark", "regex"], str] | None = None
    """Of a custom tool: the syntax and the grammar that its `input` must fit."""

    def as_function(self) -> Json:
        """As chat templates take it."""
        function: Json = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = dict(self.parameters)
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What a request asks of the form of its output."""

    tools: tuple[Tool, ...] = ()
    """Those that may be called."""
    choice: ToolChoice = ToolChoice.NONE
    single: bool = False
    """One call at most."""
    closed: bool = False
    """The model was shown other tools too: calls to them must be made impossible."""
    text_format: Mapping[str, Any] = field(default_factory=lambda: {"type": "text"})
    """As openai's ResponseFormatTextConfig."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    stop_tokens: tuple[int, ...] = ()
    """Tokens of the request's own that end the answer, and are no text."""
    special_tokens: bool = False
    """Show special tokens in the text."""


class Decoder(Protocol):
    """Token ids -> text, incrementally; pure but for its own state."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The characters that are certain now: never half a UTF-8 sequence, never a special token."""

    def flush(self) -> str:
        """What was held back, at the end (a cut UTF-8 sequence becomes U+FFFD)."""


class OutputParser(Protocol):
    """Decoded text -> what the model said, by the model's format; pure but for its own state."""

    @property
    def plain(self) -> bool:
        """Whether text is nothing but text here, until a marker comes: then it may be fed in any pieces."""

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        """What is certain now. Feed it token by token: what comes out must not depend on batches."""

    def flush(self, *, cut: bool) -> list[Delta]:
        """What was held back, at the end. `cut`: the model was not done; half a call is no text then either."""


class OutputFormat(Protocol):
    """How the model says text, reasoning and calls in one request."""

    @property
    def structured(self) -> Structured | None:
        """What holds the output to the form that was asked for; None where nothing has to."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a turn: they are no text, and no markup."""

    @property
    def markers(self) -> frozenset[int]:
        """Tokens that may be markup; their text is never divided."""

    def decoder(self) -> Decoder: ...

    def parser(self, prompt: Sequence[int]) -> OutputParser:
        """A fresh parser for one response to `prompt`."""
