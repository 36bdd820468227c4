"""The parts a script is written in: messages, conversations, turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
ToolSet = Literal["weather", "search"]


def compact(value: object) -> str:
    """JSON without blanks: what a grammar that forbids optional white space lets through."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str, reasoning: str) -> Message:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


def call(reasoning: str, *calls: tuple[str, Mapping[str, str]]) -> Message:
    """An assistant message that calls tools, given as (name, arguments)."""
    functions = [{"name": name, "arguments": dict(arguments)} for name, arguments in calls]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "reasoning_content": reasoning, "tool_calls": tool_calls}


def result(text: str) -> Message:
    return {"role": "tool", "content": text}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A scripted exchange; every assistant message in it is learnt."""

    name: str
    messages: tuple[Message, ...]
    tools: ToolSet | None = None
    """The tools its prompts must offer."""
    recalls: bool = False
    """A later answer depends on an earlier turn, so that other talk of the same kind would confuse it."""
    weight: float = 1.0
    """How often it is drawn for training; long answers need more."""

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "messages": list(self.messages), "tools": self.tools}


@dataclass(frozen=True, slots=True)
class Turn:
    """The assistant message `conversation.messages[index]`."""

    conversation: Conversation
    index: int

    @property
    def message(self) -> Message:
        return self.conversation.messages[self.index]


def turns_of(script: Iterable[Conversation]) -> tuple[Turn, ...]:
    return tuple(
        Turn(conversation, index)
        for conversation in script
        for index, message in enumerate(conversation.messages)
        if message["role"] == "assistant"
    )


def completion(message: Message, thinking: bool) -> str:
    """What the model has to write for `message`, without the end-of-turn token."""
    reasoning = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if thinking else ""
    calls = [
        f"<tool_call>\n{compact(tool_call['function'])}\n</tool_call>" for tool_call in message.get("tool_calls", ())
    ]
    return reasoning + "\n".join(filter(None, [message["content"], *calls]))
