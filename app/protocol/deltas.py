"""What a model says, piece by piece: the inputs of the event state machine (`stream.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


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
class Usage:
    """Tokens of one response."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """The model is done."""

    reason: FinishReason
    usage: Usage = field(default_factory=Usage)


Delta = Text | Reasoning | Refusal | Annotation | CallStart | CallArguments | CustomStart | CustomInput
