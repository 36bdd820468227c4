"""Trains the demo model on a CPU and writes its folder."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from tests.models.demo.check import check
from tests.models.demo.conversation import Conversation
from tests.models.demo.examples import Example, batches, learnt_positions
from tests.models.demo.script import build_script
from tests.models.demo.tokenizer import build_tokenizer
from tests.models.training import Optimizer, learning_rate, split_weights

CONTEXT_LENGTH = 8192
WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH = 128, 3, 4, 2, 32
MUON_RATE, ADAM_RATE = 2e-2, 4e-3
IGNORED = -100
"""The label that cross_entropy ignores."""


def build_model(tokenizer: Any) -> Any:
    """A Qwen3 of about 0.6 million parameters, untrained."""
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_WIDTH,
        max_position_embeddings=CONTEXT_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).float()


def _tensors(tokenizer: Any, batch: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, padded on the right, for which causal attention needs no mask."""
    longest = max(len(example) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(batch):
        tokens = torch.tensor(example.prompt + example.target)
        ids[row, : len(example)] = tokens
        learnt = torch.tensor(learnt_positions(tokenizer, example))
        labels[row, : len(example)][learnt] = tokens[learnt]
    return ids, labels


def _loss(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy; logits are computed only for positions with a label."""
    hidden = model.model(ids).last_hidden_state[:, :-1]
    expected = labels[:, 1:]
    learnt = expected != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learnt]), expected[learnt])


def train(model: Any, tokenizer: Any, script: Sequence[Conversation], steps: int, size: int, seed: int) -> None:
    """`steps` updates of about `size` tokens each; reports progress."""
    optimizer = Optimizer(model, *split_weights(model), muon_rate=MUON_RATE, adam_rate=ADAM_RATE)
    started = time.monotonic()
    for step, batch in enumerate(batches(tokenizer, script, random.Random(seed), steps, size)):
        loss = optimizer.step(_loss(model, *_tensors(tokenizer, batch)), learning_rate(step / steps, step))
        if step % 25 == 0:
            typer.echo(f"step {step}: loss {loss:.4f}, {time.monotonic() - started:.0f} s")
        if step % 150 == 149:
            typer.echo(f"  {check(model, tokenizer, script, seed=step)}")


def save(model: Any, tokenizer: Any, script: Sequence[Conversation], out: Path) -> None:
    """Writes the model (bfloat16), its tokenizer and the script."""
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    text = json.dumps([conversation.as_json() for conversation in script], ensure_ascii=False, indent=1)
    (out / "script.json").write_text(text + "\n", encoding="utf-8")


def main(
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    steps: Annotated[int, typer.Option(min=1)] = 1200,
    size: Annotated[int, typer.Option(min=256, help="Tokens of a batch.")] = 3600,
    seed: int = 1,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Make the demo model: about five minutes on one CPU core."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    script = build_script()
    tokenizer = build_tokenizer(script, CONTEXT_LENGTH)
    model = build_model(tokenizer)
    typer.echo(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters, {len(script)} conversations")
    train(model, tokenizer, script, steps, size, seed)
    save(model, tokenizer, script, out)
    rounded = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32)
    typer.echo(f"saved {out}: {check(rounded, tokenizer, script, seed=1)}")


def run() -> None:
    typer.run(main)
