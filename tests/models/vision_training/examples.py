"""Scenes as tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.models.pictures import draw
from tests.models.vision_training.network import TILE
from tests.models.vision_training.script import Scene
from tests.models.vision_training.tokenizer import END, START

IGNORED = -100
"""The label that cross_entropy ignores."""
SIDES = (24, 40, 56, 80, 112, 160)


@dataclass(frozen=True, slots=True)
class Example:
    ids: list[int]
    learnt: list[bool]
    """Which tokens the model has to say itself."""
    pixels: torch.Tensor
    """Tiles x 3 x height x width; no tiles without pictures."""


def example(processor: Any, scene: Scene, rng: random.Random) -> Example:
    text = processor.tokenizer.apply_chat_template(scene.messages, tokenize=False)
    images = [draw(picture, *random_size(rng), rng) for picture in scene.pictures]
    made = processor(text=[text], images=[images] if images else None)
    ids = list(made["input_ids"][0])
    pixels = torch.tensor(made["pixel_values"])[0] if images else torch.zeros(0, 3, 1, 1)
    return Example(ids, _learnt(processor.tokenizer, ids), pixels)


def random_size(rng: random.Random) -> tuple[int, int]:
    side = rng.choice(SIDES)
    return (side, side) if rng.random() < 0.7 else (side, rng.choice(SIDES))


def pixels_of(image: Image.Image) -> torch.Tensor:
    """The image as the processor hands it to the model: 3 x TILE x TILE, from -1 to 1."""
    small = image.resize((TILE, TILE), Image.Resampling.LANCZOS)
    return torch.tensor(np.asarray(small, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1)


def _learnt(tokenizer: Any, ids: Sequence[int]) -> list[bool]:
    """The assistant's words and the mark after them."""
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    opening = tokenizer.encode(f"{START}assistant\n", add_special_tokens=False)
    call = tokenizer.convert_tokens_to_ids("<call>")
    learnt = [False] * len(ids)
    for index, token in enumerate(ids):
        body = index + len(opening)
        if token != start or ids[index:body] != opening:
            continue
        stop = ids.index(end, body)
        if call not in ids[body:stop]:
            learnt[body : stop + 1] = [True] * (stop + 1 - body)
    return learnt


def batch(examples: Sequence[Example]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The model's arguments and the labels. Padding is on the right, for which causal attention needs no mask."""
    longest = max(len(each.ids) for each in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, each in enumerate(examples):
        tokens = torch.tensor(each.ids)
        ids[row, : len(tokens)] = tokens
        learnt = torch.tensor(each.learnt)
        labels[row, : len(tokens)][learnt] = tokens[learnt]
    tiles = [each.pixels for each in examples if len(each.pixels)]
    arguments = {"input_ids": ids}
    if tiles:
        pixels = torch.cat(tiles)[None]
        arguments |= {
            "pixel_values": pixels,
            "pixel_attention_mask": torch.ones_like(pixels[:, :, 0], dtype=torch.bool),
        }
    return arguments, labels
