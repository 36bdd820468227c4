"""Trains the vision model on a CPU and writes its folder."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import GenerationConfig, Idefics3ForConditionalGeneration

from tests.models.pictures import COLOURS, SHAPES, draw, random_picture
from tests.models.training import Optimizer, learning_rate, split_weights
from tests.models.vision_training.check import check
from tests.models.vision_training.examples import IGNORED, Example, batch, example, pixels_of, random_size
from tests.models.vision_training.network import CONTEXT_LENGTH, Heads, build_model, build_processor
from tests.models.vision_training.script import random_scene
from tests.models.vision_training.tokenizer import build_tokenizer

RATES = {"muon_rate": 1.5e-2, "adam_rate": 3e-3}
GROUP = 6
"""Batches that share out their scenes by length."""


def _loss(model: Any, arguments: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """The mean over the scenes of the mean over a scene's tokens: long answers weigh no more than short ones."""
    logits, expected = model(**arguments).logits[:, :-1], labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), expected, ignore_index=IGNORED, reduction="none")
    return (losses.sum(1) / (expected != IGNORED).sum(1)).mean()


def _batches(processor: Any, rng: random.Random, steps: int, size: int) -> Iterator[list[Example]]:
    """Scenes of about the same length together, so that little is padded."""
    for start in range(0, steps, GROUP):
        pool = [example(processor, random_scene(rng), rng) for _ in range(GROUP * size)]
        pool.sort(key=lambda each: len(each.ids))
        order = list(range(min(GROUP, steps - start)))
        rng.shuffle(order)
        yield from (pool[index * size : (index + 1) * size] for index in order)


def train_eyes(model: Any, steps: int, size: int, seed: int) -> None:
    """Teaches the vision part alone to tell colours and shapes: ten times as fast as by the words of the answers."""
    rng, names = random.Random(f"eyes-{seed}"), list(COLOURS)
    eyes = torch.nn.ModuleList([model.model.vision_model, model.model.connector, Heads()])
    optimizer = Optimizer(eyes, *split_weights(eyes), **RATES)
    for step in range(steps):
        pictures = [random_picture(rng) for _ in range(size)]
        seen = torch.stack([pixels_of(draw(each, *random_size(rng), rng)) for each in pictures])
        colours, shapes = eyes[2](eyes[1](eyes[0](pixel_values=seen).last_hidden_state))
        colour = torch.tensor([names.index(each.colour) for each in pictures])
        shape = torch.tensor([SHAPES.index(each.shape) for each in pictures])
        loss = torch.nn.functional.cross_entropy(colours, colour) + torch.nn.functional.cross_entropy(shapes, shape)
        optimizer.step(loss, learning_rate(step / steps, step))
        if step % 50 == 49:
            right = ((colours.argmax(1) == colour) & (shapes.argmax(1) == shape)).float().mean()
            typer.echo(f"eyes, step {step}: loss {float(loss.detach()):.4f}, {float(right):.0%} right")


def train(model: Any, processor: Any, steps: int, size: int, seed: int) -> None:
    """`steps` updates of `size` scenes each; reports progress."""
    optimizer = Optimizer(model, *split_weights(model), **RATES)
    rng, started = random.Random(seed), time.monotonic()
    for step, examples in enumerate(_batches(processor, rng, steps, size)):
        loss = _loss(model, *batch(examples))
        optimizer.step(loss, learning_rate(step / steps, step))
        if step % 25 == 0:
            typer.echo(f"step {step}: loss {float(loss.detach()):.4f}, {time.monotonic() - started:.0f} s")
        if step % 200 == 199:
            typer.echo(f"  {check(model, processor, 60, seed=step)}")


def save(model: Any, processor: Any, out: Path) -> None:
    """Writes the model (bfloat16), its tokenizer and its processor."""
    tokenizer = processor.tokenizer
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(out)
    processor.save_pretrained(out)


def main(
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    steps: Annotated[int, typer.Option(min=1)] = 500,
    eyes: Annotated[int, typer.Option(min=1, help="Steps of the vision part alone.")] = 500,
    size: Annotated[int, typer.Option(min=1, help="Scenes of a batch.")] = 24,
    seed: int = 1,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Make the vision model: about five minutes on one CPU core."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(CONTEXT_LENGTH)
    model, processor = build_model(tokenizer), build_processor(tokenizer)
    typer.echo(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters")
    train_eyes(model, eyes, 64, seed)
    train(model, processor, steps, size, seed)
    save(model, processor, out)
    rounded = Idefics3ForConditionalGeneration.from_pretrained(out, dtype=torch.float32)
    typer.echo(f"saved {out}: {check(rounded, processor, 300, seed=1)}")


def run() -> None:
    typer.run(main)
