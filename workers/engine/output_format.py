"""The output of a model: what a request asks of it, and the parsers that turn its text into deltas.

An engine's output format knows how its model marks reasoning and tool calls, and which grammar enforces the form of an
answer. `workers.formats` has what is the same for all models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Protocol

from app.protocol.events.deltas import Delta
from app.protocol.types import Json
from workers.engine.mask_budget import Cost


@dataclass(frozen=True, slots=True)
class Structured:
    """A grammar that enforces the form of the output, in the engine's own notation."""

    tag: str
    """A structural tag (xgrammar's JSON)."""
    request_field: str
    """The format's place in the request, for messages."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template: without `thoughts`, they decide where the grammar starts to apply."""
    barred: frozenset[int] = frozenset()
    """Tokens that the model may not write."""
    thoughts: Any = None
    """The engine's own: by the prompt, where thoughts end and so the grammar starts to apply."""
    cost: Cost = field(default_factory=Cost)
    """The cost of the format for the engine."""


class ToolChoice(Enum):
    """Whether the model may or must call tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """Must call the only tool, once."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool
    field: str
    """The tool's position in the request (`tools[0]`), for messages."""
    grammar: tuple[Literal["lark", "regex"], str] | None = None
    """The syntax and the grammar that the `input` of a custom tool must match."""

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
    """A request's rules for the form of its output."""

    tools: tuple[Tool, ...] = ()
    """The tools that may be called."""
    choice: ToolChoice = ToolChoice.NONE
    single: bool = False
    """Whether the model may make one call at most."""
    closed: bool = False
    """The model was shown other tools too; the grammar must rule out calls of them."""
    text_format: Mapping[str, Any] = field(default_factory=lambda: {"type": "text"})
    """The format as openai's ResponseFormatTextConfig."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    stop_tokens: tuple[int, ...] = ()
    """Further tokens that end the answer, from the request; they are no text."""
    special_tokens: bool = False
    """Whether special tokens are shown in the text."""

    @property
    def forced(self) -> bool:
        """Whether the model must call a tool."""
        return self.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)

    @property
    def grammar_field(self) -> str:
        """The field of the request that a grammar for this output comes from, for messages.

        The tools' grammars are one with the text's: that is named then, and of several tools none.
        """
        if self.text_format["type"] != "text" and not self.forced:
            return "text.format"
        if len(self.tools) != 1:
            return "tools"
        [tool] = self.tools
        if tool.grammar is not None:
            return f"{tool.field}.format"
        return f"{tool.field}.parameters" if tool.strict else tool.field


class Decoder(Protocol):
    """Token ids to text, incrementally; pure but for its own state."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The characters that are certain by now: never half a UTF-8 sequence, never a special token."""

    def flush(self) -> str:
        """What was held back, at the end of the tokens; a cut UTF-8 sequence becomes U+FFFD."""


class OutputParser(Protocol):
    """Decoded text to deltas, by the model's format; pure but for its own state."""

    @property
    def plain(self) -> bool:
        """Whether all text until the next marker token is plain text, so that it may be fed in pieces of any size."""

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Delta]:
        """The deltas that are certain by now. Feed it token by token: the result must not depend on batches."""

    def flush(self, *, cut: bool) -> list[Delta]:
        """What was held back, at the end. `cut`: the model was interrupted; half a call is no text then either."""


class OutputFormat(Protocol):
    """How the model writes text, reasoning and calls for one request."""

    @property
    def structured(self) -> Structured | None:
        """The grammar that enforces the form of the output; None if nothing has to be enforced."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a turn: they are no text, and the parser does not get them."""

    @property
    def markers(self) -> frozenset[int]:
        """Tokens that may mark reasoning or calls; their text is never divided."""

    def decoder(self) -> Decoder: ...

    def parser(self, prompt: Sequence[int]) -> OutputParser:
        """A fresh parser for one response to `prompt`."""
