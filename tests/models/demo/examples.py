"""Turns as token ids, and batches of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.models.demo.context import Context, plain_context, random_context
from tests.models.demo.conversation import Conversation, Message, Turn, completion, turns_of
from tests.models.demo.tokenizer import END, START

SHELF = 96
"""Examples drawn at once and sorted by length, so that a batch has little padding."""


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a prompt and of the text that must follow it."""

    prompt: list[int]
    target: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)


def _without_reasoning(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def render(tokenizer: Any, turn: Turn, context: Context) -> Example:
    """The prompt up to `turn` in `context`, and the scripted turn."""
    messages = [*context.history, *turn.conversation.messages[: turn.index]]
    if not context.keep_reasoning:
        messages = [_without_reasoning(message) for message in messages]
    if context.system is not None:
        messages.insert(0, {"role": "system", "content": context.system})
    prompt = tokenizer.apply_chat_template(
        messages,
        tools=list(context.tools) or None,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=context.thinking,
    )
    return Example(_ids(tokenizer, prompt), _ids(tokenizer, completion(turn.message, context.thinking) + END))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def learnt_positions(tokenizer: Any, example: Example) -> list[bool]:
    """Which tokens are trained on: the target, and earlier assistant turns, which cost nothing.

    The first token of an earlier turn is left out: whether it is `<think>` depends on what follows.
    """
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    header = [start, *_ids(tokenizer, "assistant\n")]
    learnt, speaking, position = [False] * len(example.prompt), False, 0
    while position < len(example.prompt):
        if example.prompt[position : position + len(header)] == header:
            position, speaking = position + len(header) + 1, True
            continue
        learnt[position] = speaking
        speaking = speaking and example.prompt[position] != end
        position += 1
    if example.prompt[-1] != end:  # the prompt gives the opening of the next turn
        opening = len(example.prompt) - example.prompt[::-1].index(start) - 1
        learnt[opening:] = [False] * (len(learnt) - opening)
    return learnt + [True] * len(example.target)


def draw(tokenizer: Any, script: Sequence[Conversation], rng: random.Random, noise: float) -> Example:
    """A random turn, with probability `noise` in a random context."""
    conversation = rng.choices(script, [entry.weight for entry in script])[0]
    turn = rng.choice(turns_of([conversation]))
    thinking = rng.random() < 0.6
    noisy = rng.random() < noise
    context = random_context(turn, script, rng, thinking) if noisy else plain_context(turn, thinking)
    return render(tokenizer, turn, context)


def _noise(progress: float) -> float:
    """Short prompts come first: they teach copying (names, cities) fast."""
    return min(0.85, max(0.0, 2.5 * progress - 0.5))


def batches(
    tokenizer: Any, script: Sequence[Conversation], rng: random.Random, steps: int, size: int
) -> Iterator[list[Example]]:
    """`steps` batches of examples of like length, each of about `size` tokens with its padding."""
    shelf: list[Example] = []
    for step in range(steps):
        while len(shelf) < SHELF:
            shelf.append(draw(tokenizer, script, rng, _noise(step / steps)))
        shelf.sort(key=len)
        last = rng.randrange(len(shelf)) + 1
        first = max(0, last - max(1, size // len(shelf[last - 1])))
        yield shelf[first:last]
        del shelf[first:last]
