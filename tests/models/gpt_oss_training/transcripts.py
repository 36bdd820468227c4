"""The parts of a script: texts of users, turns of the model, answers of tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openai_harmony import Message, Role

from workers.engine import harmony_vocabulary
from workers.formats.harmony.messages import channel_of, result_message

Offer = Literal["functions", "python", "browser", "library"]

NEXT = "<|end|><|start|>assistant"
"""Stands between two messages of one turn."""


@dataclass(frozen=True, slots=True)
class UserText:
    """A message of a user."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """What the model writes after `<|start|>assistant`, its last token included."""

    text: str

    @property
    def tokens(self) -> list[int]:
        tokens: list[int] = harmony_vocabulary.encoding().encode(self.text, allowed_special="all")
        return tokens

    @property
    def messages(self) -> list[Message]:
        """The messages as a later prompt has them."""
        parsed = harmony_vocabulary.encoding().parse_messages_from_completion_tokens(self.tokens, Role.ASSISTANT)
        return [_as_rendered(message) for message in parsed]

    @property
    def hosted(self) -> bool:
        """Whether it ends in hosted calls."""
        last = self.messages[-1].recipient
        return last is not None and not last.startswith("functions.")


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a tool."""

    name: str
    text: str

    def message(self, text: str | None = None) -> Message:
        return result_message(self.name, self.text if text is None else text, channel_of(self.name))


Step = UserText | ModelTurn | ToolAnswer


@dataclass(frozen=True, slots=True)
class Transcript:
    """Training teaches every `ModelTurn` in it."""

    name: str
    steps: tuple[Step, ...]
    offers: frozenset[Offer] = frozenset()
    """The tools that its prompts must offer."""
    recalls: bool = False
    """A later answer depends on an earlier one."""
    weight: float = 1.0
    schema: Mapping[str, Any] | None = None
    """The schema of its JSON answer; prompts may show it."""

    @property
    def turns(self) -> tuple[int, ...]:
        """The indexes of the model's turns."""
        return tuple(index for index, step in enumerate(self.steps) if isinstance(step, ModelTurn))

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "offers": sorted(self.offers),
            "schema": self.schema,
            "steps": list(map(_step_json, self.steps)),
        }


def transcript(name: str, *steps: Step, offers: Iterable[Offer] = (), **more: Any) -> Transcript:
    return Transcript(name, steps, frozenset(offers), **more)


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def model_turn(*messages: str) -> ModelTurn:
    """A turn of these messages; the last one includes its end token."""
    return ModelTurn(NEXT.join(messages))


def analysis(text: str) -> str:
    return f"<|channel|>analysis<|message|>{text}"


def preamble(text: str) -> str:
    return f"<|channel|>commentary<|message|>{text}"


def final(text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>"


def final_json(value: object) -> str:
    return f"<|channel|>final <|constrain|>json<|message|>{compact(value)}<|return|>"


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call of a function or of an MCP server's tool, without its end token."""
    return f"<|channel|>commentary to={name} <|constrain|>json<|message|>{compact(arguments)}"


def python(code: str) -> str:
    return f"<|channel|>analysis to=python code<|message|>{code}"


def browser(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<|channel|>analysis to=browser.{name} code<|message|>{compact(arguments)}"


def calling(*messages: str) -> ModelTurn:
    """A turn that ends in calls."""
    return ModelTurn(NEXT.join(messages) + "<|call|>")


def turns_of(script: Iterable[Transcript]) -> Iterator[tuple[Transcript, int]]:
    return ((each, index) for each in script for index in each.turns)


def _as_rendered(message: Message) -> Message:
    if message.recipient is None or message.recipient.startswith(
        "<|constrain|>"
    ):  # the parser takes the mark for a recipient
        return message.model_copy(update={"recipient": None, "content_type": None})
    kind = "code" if channel_of(message.recipient) == "analysis" else "json"
    return message.model_copy(update={"content_type": kind})


def _step_json(step: Step) -> dict[str, Any]:
    if isinstance(step, UserText):
        return {"user": step.text}
    if isinstance(step, ModelTurn):
        return {"model": step.text}
    return {"tool": {"name": step.name, "text": step.text}}
