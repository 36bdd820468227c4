"""A shape as a folder that vLLM loads with `load_format = "dummy"`: a config, a tokenizer, a chat template.

Nothing is downloaded. A model with dummy weights writes any of its ids, so the tokenizer knows every one, and each
stands for text of its own: 256 for the bytes, two for the marks of the chat template, and the rest for a blank and a
number. There are no merges: prompts are encoded byte by byte. No id but those of bytes is a part of a character, so the
text of a token is never held back until the next one.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.bench.gpu.shapes import Shape

START, END = "<|im_start|>", "<|im_end|>"
BLANK = "\u0120"
"""How byte-level tokenizers write a blank."""
TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_model(shape: Shape, folder: Path) -> Path:
    """Writes the files of the shape into `folder`, which is made; returns it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.config, indent=2), encoding="utf-8")
    end: int = shape.config["eos_token_id"]
    _tokenizer(shape.config["vocab_size"], end).save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.config["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def _tokenizer(size: int, end: int) -> Tokenizer:
    """Knows the ids below `size`; `end` ends a turn, and the id before it begins one."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"{BLANK}{number}" for number in range(len(words), size)]
    words[end - 1 : end + 1] = START, END
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    return tokenizer
