"""Checks that a model reproduces its script, by one forward pass for each turn (teacher-forced, greedy)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.models.gpt_oss_training.context import Context, plain_context, random_context
from tests.models.gpt_oss_training.examples import Example, render
from tests.models.gpt_oss_training.network import logits_of
from tests.models.gpt_oss_training.transcripts import Transcript, turns_of
from tests.models.gpt_oss_training.vocabulary import Vocabulary
from tests.models.report import Finding, Report


def check(model: Any, vocabulary: Vocabulary, script: Sequence[Transcript], seed: int) -> Report:
    """Every turn plain, as a later response shows it, and in a random context drawn from `seed`.

    How sure the model is: the smallest lead of a right token over the next likeliest, in log probability.
    """
    findings = []
    with torch.no_grad():
        for name, plain, example in _examples(script, seed):
            prompt, target = vocabulary.reduced(example.prompt), vocabulary.reduced(example.target)
            hidden = model.model(torch.tensor([prompt + target])).last_hidden_state[0, len(prompt) - 1 : -1]
            likely = logits_of(model, hidden, vocabulary).log_softmax(-1).topk(2)
            exact = likely.indices[:, 0].tolist() == target
            margin = float((likely.values[:, 0] - likely.values[:, 1]).min())
            findings.append(Finding(name, plain, exact, margin))
    return Report(tuple(findings), "smallest margin")


def _examples(script: Sequence[Transcript], seed: int) -> Iterator[tuple[str, bool, Example]]:
    rng = random.Random(seed)
    for transcript, index in turns_of(script):
        for how, plain, context in _contexts(transcript, script, rng):
            yield f"{transcript.name}[{index}]{how}", plain, render(transcript, index, context)


def _contexts(
    transcript: Transcript, script: Sequence[Transcript], rng: random.Random
) -> Iterator[tuple[str, bool, Context]]:
    yield "", True, plain_context(transcript)
    yield " shown again", True, plain_context(transcript, as_items=True)
    yield " in context", False, random_context(transcript, script, rng)
