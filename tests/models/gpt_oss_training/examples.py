"""Turns as token ids, and batches of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from openai_harmony import Message, Role

from tests.models.gpt_oss_training.context import (
    Context,
    plain_context,
    random_context,
    steps_before,
)
from tests.models.gpt_oss_training.transcripts import ModelTurn, Step, ToolAnswer, Transcript, UserText
from tests.models.gpt_oss_training.vocabulary import Vocabulary
from workers.engine import harmony_vocabulary
from workers.formats.harmony.prompt import Conversation, continued

SHELF = 64
"""Examples drawn at once and sorted by length, so that a batch has little padding."""
_BLIND = 40
"""The most tokens of a prompt that are replaced by tokens that the model never saw."""


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a prompt and of the text that must follow it."""

    prompt: list[int]
    target: list[int]
    learnt: tuple[tuple[int, int], ...] = ()
    """Spans of the prompt that are trained on as well, at no cost."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)


def render(transcript: Transcript, index: int, context: Context) -> Example:
    """The prompt up to the turn at `index` in `context`, and the scripted turn."""
    step = transcript.steps[index]
    assert isinstance(step, ModelTurn)
    steps = steps_before(transcript, index, context)
    split = _loop_begins(steps) if context.exact else len(steps)
    messages = _answered([message for each in steps[:split] for message in _messages(each)])
    prompt = Conversation(context.preface, (), earlier=messages).tokens()
    spans = []
    while split < len(steps):
        turn, results = _turn(steps, split)
        spans.append((len(prompt), len(prompt) + len(turn.tokens)))
        prompt += continued(turn.tokens, [result.message() for result in results])
        split += 1 + len(results)
    return Example(prompt, step.tokens, (*spans, *_answers(prompt)))


def _loop_begins(steps: Sequence[Step]) -> int:
    """The index at which the turns of the current response begin."""
    index = len(steps)
    while index and (isinstance(steps[index - 1], ToolAnswer) or _hosted(steps[index - 1])):
        index -= 1
    while index < len(steps) and not isinstance(steps[index], ModelTurn):
        index += 1
    return index


def _hosted(step: Step) -> bool:
    return isinstance(step, ModelTurn) and step.hosted


def _turn(steps: Sequence[Step], index: int) -> tuple[ModelTurn, list[ToolAnswer]]:
    turn = steps[index]
    assert isinstance(turn, ModelTurn)
    results = []
    for step in steps[index + 1 :]:
        if not isinstance(step, ToolAnswer):
            break
        results.append(step)
    return turn, results


def _messages(step: Step) -> list[Message]:
    if isinstance(step, UserText):
        return [Message.from_role_and_content(Role.USER, step.text)]
    return [step.message()] if isinstance(step, ToolAnswer) else step.messages


def _answered(messages: list[Message]) -> list[Message]:
    """Hosted calls with their results right after them, as items have them."""
    made: list[Message] = []
    left = list(messages)
    while left:
        message = left.pop(0)
        made.append(message)
        if message.recipient not in (None, "assistant") and not message.recipient.startswith("functions."):
            index = next(index for index, other in enumerate(left) if other.author.name == message.recipient)
            made.append(left.pop(index))
    return made


def _answers(prompt: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The spans of earlier answers, without their end tokens."""
    head = harmony_vocabulary.encoding().encode("<|channel|>final<|message|>", allowed_special="all")
    end = harmony_vocabulary.special(harmony_vocabulary.END)
    index = 0
    while index < len(prompt):
        if list(prompt[index : index + len(head)]) == head and end in prompt[index:]:
            first = index + len(head)
            index = list(prompt).index(end, first)
            yield first, index
        index += 1


def draw(script: Sequence[Transcript], rng: random.Random, noise: float, vocabulary: Vocabulary) -> Example:
    """A random turn in the reduced vocabulary, with probability `noise` in a random context."""
    transcript = rng.choices(script, [each.weight for each in script])[0]
    noisy = rng.random() < noise
    context = random_context(transcript, script, rng) if noisy else plain_context(transcript)
    example = render(transcript, rng.choice(transcript.turns), context)
    prompt = vocabulary.reduced(example.prompt)
    if noisy and rng.random() < 0.5:
        _blind(prompt, rng)
    return Example(prompt, vocabulary.reduced(example.target), example.learnt)


def _blind(prompt: list[int], rng: random.Random) -> None:
    """Puts tokens that the model never saw somewhere before the conversation."""
    first = rng.randrange(len(prompt))
    last = first + rng.randrange(1, _BLIND)
    if len(prompt) > 120 and last < len(prompt) // 3:
        prompt[first:last] = [0] * (last - first)


def _noise(progress: float) -> float:
    """Short prompts come first: they teach copying (names, cities) fast."""
    return min(0.9, max(0.0, 2.5 * progress - 0.5))


def batches(
    script: Sequence[Transcript], vocabulary: Vocabulary, rng: random.Random, steps: int, size: int
) -> Iterator[list[Example]]:
    """`steps` batches of examples of like length, each of about `size` tokens with its padding."""
    shelf: list[Example] = []
    for step in range(steps):
        while len(shelf) < SHELF:
            shelf.append(draw(script, rng, _noise(step / steps), vocabulary))
        shelf.sort(key=len)
        last = rng.randrange(len(shelf)) + 1
        first = max(0, last - max(1, size // len(shelf[last - 1])))
        yield shelf[first:last]
        del shelf[first:last]
