"""The vision model's tokenizer: byte-level BPE over its few words, with the marks that Idefics3 puts around images."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.models.vision_training.script import GREETING, NOTHING, SYSTEMS, random_scene

TEMPLATE = Path(__file__).with_name("template.jinja")
MAX_MERGED = 420
START, END, PAD, IMAGE = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>"
MARKS = (
    IMAGE,
    "<fake_token_around_image>",
    "<global-img>",
    "<call>",
)

# Words with their blank, single digits, punctuation, line ends.
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+"


def _corpus() -> Iterator[str]:
    rng = random.Random(0)
    yield from (*SYSTEMS, GREETING, NOTHING, "user assistant system tool look")
    for _ in range(3000):
        for message in random_scene(rng).messages:
            content = message["content"]
            parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            yield from parts


def build_tokenizer(context_length: int) -> Any:
    """A transformers tokenizer with the chat template; `context_length` in tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        _corpus(), trainers.BpeTrainer(vocab_size=MAX_MERGED, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([PAD, START, END, *MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=context_length,
        chat_template=TEMPLATE.read_text(encoding="utf-8").strip(),
    )
