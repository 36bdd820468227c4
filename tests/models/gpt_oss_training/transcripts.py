"""The parts a script is written in: users, what the model writes, what tools answer."""

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
"""Between two messages of one turn."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user says."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """What the model writes behind `<|start|>assistant`, its last token included."""

    text: str

    @property
    def tokens(self) -> list[int]:
        tokens: list[int] = harmony_vocabulary.encoding().encode(self.text, allowed_special="all")
        return tokens

    @property
    def messages(self) -> list[Message]:
        """As a later prompt has them."""
        parsed = harmony_vocabulary.encoding().parse_messages_from_completion_tokens(self.tokens, Role.ASSISTANT)
        return [_as_rendered(message) for message in parsed]

    @property
    def hosted(self) -> bool:
        """It ends in calls that the server runs."""
        last = self.messages[-1].recipient
        return last is not None and not last.startswith("functions.")


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool answers."""

    name: str
    text: str

    def message(self, text: str | None = None) -> Message:
        return result_message(self.name, self.text if text is None else text, channel_of(self.name))


Step = Asked | Said | Told


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything that is `Said` in it is learnt."""

    name: str
    steps: tuple[Step, ...]
    offers: frozenset[Offer] = frozenset()
    """The tools that its prompts must offer."""
    recalls: bool = False
    """A later answer depends on an earlier one."""
    weight: float = 1.0
    schema: Mapping[str, Any] | None = None
    """Of the JSON that it answers; prompts may show it."""

    @property
    def turns(self) -> tuple[int, ...]:
        """The places of what the model says."""
        return tuple(place for place, step in enumerate(self.steps) if isinstance(step, Said))

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


def said(*messages: str) -> Said:
    """A turn of these messages; the last has its end."""
    return Said(NEXT.join(messages))


def analysis(text: str) -> str:
    return f"<|channel|>analysis<|message|>{text}"


def preamble(text: str) -> str:
    return f"<|channel|>commentary<|message|>{text}"


def final(text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>"


def final_json(value: object) -> str:
    return f"<|channel|>final <|constrain|>json<|message|>{compact(value)}<|return|>"


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """Of a function, or of a tool of an MCP server; not yet ended."""
    return f"<|channel|>commentary to={name} <|constrain|>json<|message|>{compact(arguments)}"


def python(code: str) -> str:
    return f"<|channel|>analysis to=python code<|message|>{code}"


def browser(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<|channel|>analysis to=browser.{name} code<|message|>{compact(arguments)}"


def calling(*messages: str) -> Said:
    """A turn that ends in calls."""
    return Said(NEXT.join(messages) + "<|call|>")


def turns_of(script: Iterable[Transcript]) -> Iterator[tuple[Transcript, int]]:
    return ((each, place) for each in script for place in each.turns)


def _as_rendered(message: Message) -> Message:
    if message.recipient is None or message.recipient.startswith("<|constrain|>"):  # which it takes for one
        return message.model_copy(update={"recipient": None, "content_type": None})
    kind = "code" if channel_of(message.recipient) == "analysis" else "json"
    return message.model_copy(update={"content_type": kind})


def _step_json(step: Step) -> dict[str, Any]:
    if isinstance(step, Asked):
        return {"asked": step.text}
    if isinstance(step, Said):
        return {"said": step.text}
    return {"told": {"name": step.name, "text": step.text}}
