"""Checks that a model reproduces its script, by one forward pass for each turn (teacher-forced, greedy)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.models.demo.context import plain_context, random_context
from tests.models.demo.conversation import Conversation, turns_of
from tests.models.demo.examples import Example, render
from tests.models.report import Finding, Report


def _examples(tokenizer: Any, script: Sequence[Conversation], seed: int) -> Iterator[tuple[str, bool, Example]]:
    rng = random.Random(seed)
    for turn in turns_of(script):
        for thinking in (False, True):
            name = f"{turn.conversation.name}[{turn.index}]{' thinking' if thinking else ''}"
            yield name, True, render(tokenizer, turn, plain_context(turn, thinking))
            yield name + " in context", False, render(tokenizer, turn, random_context(turn, script, rng, thinking))


def check(model: Any, tokenizer: Any, script: Sequence[Conversation], seed: int) -> Report:
    """Every turn, thinking on and off, plain and in one random context drawn from `seed`.

    How sure the model is: the probability of the scripted text when sampling at temperature 1.
    """
    findings = []
    with torch.no_grad():
        for name, plain, example in _examples(tokenizer, script, seed):
            logits = model(torch.tensor([example.prompt + example.target])).logits[0, len(example.prompt) - 1 : -1]
            target = torch.tensor(example.target)
            exact = bool((logits.argmax(-1) == target).all())
            chosen = logits.log_softmax(-1).gather(1, target[:, None])
            findings.append(Finding(name, plain, exact, float(chosen.sum().exp())))
    return Report(tuple(findings), "least sure")
