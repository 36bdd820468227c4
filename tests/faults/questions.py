"""What clients ask, and what an undisturbed run answers: computed here, not by the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from app.protocol.requests.bodies.batch import CHAT
from app.protocol.status import Status
from tests.faults.plan import MODEL

WORDS = ("cold", "héllo", "wörld", "👋🏽", "你好", "naïve", "ﬁne", "e\u0301", "🏳️‍🌈", "end.", '"quoted"', "\\n", "a\nb")
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"query": {}}}}
CHAT_TOOL = {"type": "function", "function": {name: value for name, value in TOOL.items() if name != "type"}}
_CHAT_NAMES = {"max_output_tokens": "max_completion_tokens"}
PROMPT_MARKS = len("user\n") + 3
"""Tokens of a one-message prompt beyond its text: the role, a line feed, and three special tokens."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request's input and parameters, and its only right answer."""

    command: str
    answer: str
    status: Status
    input_tokens: int | None
    """None if it is not known here."""
    output_tokens: int | None
    """None if the response fails."""
    fields: dict[str, Any]

    def continuing(self, response_id: str, earlier: Question) -> Question:
        """The same question as the next one of a chain."""
        fields = {**self.fields, "previous_response_id": response_id}
        if self.input_tokens is None or earlier.input_tokens is None:
            return replace(self, fields=fields, input_tokens=None)
        answer_tokens = len(earlier.answer.encode()) + len("assistant\n") + 2
        input_tokens = earlier.input_tokens + answer_tokens + self.input_tokens - 1
        return replace(self, fields=fields, input_tokens=input_tokens)

    def line(self, endpoint: str) -> dict[str, Any]:
        """The body of the same question in a line of a batch of this endpoint."""
        if endpoint != CHAT:
            return {"model": MODEL, "input": self.command, **self.fields}
        fields = {_CHAT_NAMES.get(name, name): value for name, value in self.fields.items()}
        if "tools" in fields:
            fields["tools"] = [CHAT_TOOL]
        return {"model": MODEL, "messages": [{"role": "user", "content": self.command}], **fields}

    def body(self, key: str) -> dict[str, Any]:
        return {"model": MODEL, "input": self.command, "metadata": {"key": key}, **self.fields}


def question(random: Random) -> Question:
    """A random question; most are long enough that faults hit them while they run."""
    command, full = random.choices((_count, _say, _repeat), (4, 3, 3))[0](random)
    chance = random.random()
    if chance < 0.04:
        return _failing(random)
    if chance > 0.85:
        return _calling(random)
    if chance < 0.14:
        return _limited(command, full, random.randint(1, len(full.encode()) + 20))
    if chance < 0.19:
        return _whole(command, full, {"presence_penalty": 0.5, "seed": 1})
    return _whole(command, full, {})


def line(random: Random) -> Question:
    """A question for a batch, of which there are many: a short one. Some fail, are cut, or call a tool."""
    chance, command = random.random(), f"/count {(last := random.randint(3, 40))}"
    if chance < 0.08:
        return _failing(random)
    if chance < 0.12:
        return _calling(random)
    if chance < 0.2:
        return _limited(command, _numbers(last), random.randint(1, 60))
    return counting(last)


def counting(numbers: int) -> Question:
    """The question to count to `numbers`."""
    return _whole(f"/count {numbers}", _numbers(numbers), {})


def _whole(command: str, full: str, fields: dict[str, Any]) -> Question:
    return Question(command, full, Status.COMPLETED, _prompt(command), len(full.encode()) + 1, fields)


def _limited(command: str, full: str, limit: int) -> Question:
    tokens = full.encode()
    fields = {"max_output_tokens": limit}
    if limit > len(tokens):
        return _whole(command, full, fields)
    answer = tokens[:limit].decode(errors="replace")
    return Question(command, answer, Status.INCOMPLETE, _prompt(command), limit, fields)


def _prompt(command: str) -> int:
    return len(command.encode()) + PROMPT_MARKS


def _failing(random: Random) -> Question:
    length = random.randint(5, 60)
    command = f"/fail {length}"
    return Question(command, _numbers(99)[:length], Status.FAILED, _prompt(command), None, {})


def _calling(random: Random) -> Question:
    """Reasoning, a message and a function call, each as one item."""
    thought, words = (" ".join(random.choices(WORDS[:6], k=random.randint(3, 20))) for _ in range(2))
    arguments = json.dumps({"query": " ".join(random.choices(WORDS[:6], k=random.randint(3, 30)))}, ensure_ascii=False)
    call = f'{{"name": "look", "arguments":{arguments}}}'
    command = f"/raw <think>{thought}</think>{words}<tool_call>{call}</tool_call>"
    tokens = len(f"{thought}{words}{call}".encode()) + len(("<think>", "</think>", "<tool_call>", "</tool_call>")) + 1
    return Question(command, thought + words + arguments, Status.COMPLETED, None, tokens, {"tools": [TOOL]})


def _numbers(last: int) -> str:
    return " ".join(str(number + 1) for number in range(last))


def _count(random: Random) -> tuple[str, str]:
    last = random.randint(10, 220)
    return f"/count {last}", _numbers(last)


def _say(random: Random) -> tuple[str, str]:
    text = " ".join(random.choices(WORDS, k=random.randint(5, 60)))
    return f"/say {text}", text


def _repeat(random: Random) -> tuple[str, str]:
    times, text = random.randint(2, 25), " ".join(random.choices(WORDS, k=random.randint(1, 4)))
    return f"/repeat {times} {text}", text * times
