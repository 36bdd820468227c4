"""The network: Idefics3 (SmolVLM's and Granite Docling's architecture), very small, and its processor.

vLLM loads it without torchvision, which has no build for this project's CPU wheels.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor, LlamaConfig
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tests.models.pictures import COLOURS, SHAPES
from tests.models.vision_training.tokenizer import IMAGE

CONTEXT_LENGTH = 4096
WIDTH, LAYERS, HEADS, HEAD_WIDTH = 96, 3, 3, 32
VISION_WIDTH, VISION_LAYERS, VISION_HEADS = 64, 2, 2
TILE, PATCH, SHUFFLE = 56, 14, 2
"""Pixels of a tile and of a patch; SHUFFLE x SHUFFLE patches become one token."""
TILE_TOKENS = (TILE // PATCH // SHUFFLE) ** 2


def build_model(tokenizer: Any) -> Any:
    """A model of about 0.5 million parameters, untrained."""
    text = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_WIDTH,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = Idefics3VisionConfig(
        hidden_size=VISION_WIDTH,
        intermediate_size=2 * VISION_WIDTH,
        num_hidden_layers=VISION_LAYERS,
        num_attention_heads=VISION_HEADS,
        image_size=TILE,
        patch_size=PATCH,
    )
    config = Idefics3Config(
        vision_config=vision.to_dict(),
        text_config=text.to_dict(),
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        scale_factor=SHUFFLE,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    return Idefics3ForConditionalGeneration(config).float()


class Heads(torch.nn.Module):  # type: ignore[misc]  # torch's types are not followed
    """What `train_eyes` reads colours and shapes with; it is thrown away afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.colour = torch.nn.Linear(TILE_TOKENS * WIDTH, len(COLOURS))
        self.shape = torch.nn.Linear(TILE_TOKENS * WIDTH, len(SHAPES))

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = seen.flatten(1)
        return self.colour(flat), self.shape(flat)


def build_processor(tokenizer: Any) -> Any:
    """Pictures to pixels, and their places in the text. Every picture becomes one tile."""
    pixels = Idefics3ImageProcessorPil(size={"longest_edge": TILE}, max_image_size={"longest_edge": TILE})
    template = tokenizer.chat_template
    return Idefics3Processor(pixels, tokenizer, image_seq_len=TILE_TOKENS, chat_template=template)
