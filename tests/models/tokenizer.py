"""gpt-oss's tokenizer in transformers' format, made from the vocabulary of openai_harmony."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from workers.engine import harmony_vocabulary as harmony

PLAIN = 199998
"""The number of tokens that stand for bytes; the special tokens follow."""
SIZE = 201088

_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = (
    f"{_LETTERS}{_UPPER}*{_LOWER}+{_SHORT}",
    f"{_LETTERS}{_UPPER}+{_LOWER}*{_SHORT}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
"""How o200k divides text before it merges bytes."""


def write(folder: Path) -> None:
    """Writes tokenizer.json and its config; takes a few seconds."""
    _tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _tokenizer() -> Tokenizer:
    inner: Any = harmony.encoding()._inner  # the package has no public way to a token's bytes
    ranks = {bytes(inner.decode_bytes([token])): token for token in range(PLAIN)}
    names = {data: "".join(map(_LETTER_OF.__getitem__, data)) for data in ranks}
    merges = [(names[left], names[right]) for left, right in _merges(ranks)]
    vocabulary = {names[data]: token for data, token in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=True))
    split = pre_tokenizers.Split(Regex("|".join(_WORDS)), behavior="isolated", invert=False)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    special = [harmony.encoding().decode([token]) for token in range(PLAIN, SIZE)]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return tokenizer


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every pair of tokens that makes a token, in the order of the made tokens."""
    for data in sorted(ranks, key=ranks.__getitem__):
        pairs = ((data[:index], data[index:]) for index in range(1, len(data)))
        known = ((ranks[left], ranks[right], left, right) for left, right in pairs if left in ranks and right in ranks)
        for _, _, left, right in sorted(known):
            yield left, right


def _byte_letters() -> dict[int, str]:
    """The letters by which byte-level BPE names bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


_LETTER_OF = _byte_letters()
