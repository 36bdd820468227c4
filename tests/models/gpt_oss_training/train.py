"""Trains the tiny gpt-oss on a CPU and writes its folder."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from tests.models.gpt_oss_training.check import check
from tests.models.gpt_oss_training.context import plain_context, random_context
from tests.models.gpt_oss_training.examples import Example, batches, render
from tests.models.gpt_oss_training.network import build, load, logits_of, matrices_of, save
from tests.models.gpt_oss_training.script import build_script
from tests.models.gpt_oss_training.transcripts import Transcript, turns_of
from tests.models.gpt_oss_training.vocabulary import Vocabulary
from tests.models.training import Optimizer, learning_rate

MUON_RATE, ADAM_RATE = 2e-2, 4e-3
IGNORED = -100
"""The label that cross_entropy ignores."""
_CONTEXTS = 6
"""Random contexts of each turn whose tokens become known."""


def vocabulary_of(script: Sequence[Transcript]) -> Vocabulary:
    return Vocabulary(token for example in _seen(script) for token in (*example.prompt, *example.target))


def _seen(script: Sequence[Transcript]) -> Iterator[Example]:
    rng = random.Random(0)
    for transcript, index in turns_of(script):
        yield render(transcript, index, plain_context(transcript))
        yield render(transcript, index, plain_context(transcript, as_items=True))
        for _ in range(_CONTEXTS):
            yield render(transcript, index, random_context(transcript, script, rng))


def _tensors(batch: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, padded on the right, for which causal attention needs no mask."""
    longest = max(len(example) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(batch):
        tokens = torch.tensor(example.prompt + example.target)
        ids[row, : len(example)] = tokens
        for first, last in (*example.learnt, (len(example.prompt), len(example))):
            labels[row, first:last] = tokens[first:last]
    return ids, labels


def _loss(model: Any, vocabulary: Vocabulary, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy; logits are computed only for positions with a label."""
    learnt = labels[:, 1:] != IGNORED
    hidden = model.model(ids).last_hidden_state[:, :-1][learnt]
    return torch.nn.functional.cross_entropy(logits_of(model, hidden, vocabulary), labels[:, 1:][learnt])


def train(model: Any, vocabulary: Vocabulary, script: Sequence[Transcript], steps: int, size: int, seed: int) -> None:
    """`steps` updates of about `size` tokens each; reports progress."""
    weights = matrices_of(model)
    optimizer = Optimizer(model, *weights, muon_rate=MUON_RATE, adam_rate=ADAM_RATE, weight_decay=0.0)
    started = time.monotonic()
    for step, batch in enumerate(batches(script, vocabulary, random.Random(seed), steps, size)):
        loss = optimizer.step(_loss(model, vocabulary, *_tensors(batch)), learning_rate(step / steps, step))
        if step % 25 == 0:
            typer.echo(f"step {step}: loss {loss:.4f}, {time.monotonic() - started:.0f} s")
        if step % 150 == 149:
            typer.echo(f"  {check(model, vocabulary, script, seed=step)}")


def main(
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    steps: Annotated[int, typer.Option(min=1)] = 900,
    size: Annotated[int, typer.Option(min=256, help="Tokens of a batch.")] = 3000,
    seed: int = 1,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Make the tiny gpt-oss: about ten minutes on one CPU core."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    script = build_script()
    vocabulary = vocabulary_of(script)
    model = build(vocabulary)
    typer.echo(f"{len(vocabulary)} tokens, {model.num_parameters()} parameters, {len(script)} transcripts")
    train(model, vocabulary, script, steps, size, seed)
    out.mkdir(parents=True, exist_ok=True)
    save(model, vocabulary, out)
    text = json.dumps([transcript.as_json() for transcript in script], ensure_ascii=False, indent=1)
    (out / "script.json").write_text(text + "\n", encoding="utf-8")
    typer.echo(f"saved {out}: {check(*load(out), script, seed=1)}")


def run() -> None:
    typer.run(main)
