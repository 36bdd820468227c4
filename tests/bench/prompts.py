"""The prompts: a short one, and one of 1,500 tokens that is new in every round."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from random import Random

from tests.bench.contenders.models import DEMO

SHORT = "Tell me a story."
LONG_TOKENS = 1500
SCRIPT = "/say The night train crosses the mountains with forty wagons of apples. "
"""For the scripted engine, which says it again and again where it ignores the end."""


class Prompt(StrEnum):
    SHORT = "short"
    LONG = "long"
    SCRIPT = "script"


def text_of(prompt: Prompt, round_number: int) -> str:
    """`{i}` stands where the number of the request goes."""
    if prompt is Prompt.LONG:
        return f"{round_number}.{{i}} {_long_text()} {SHORT}"
    return SCRIPT if prompt is Prompt.SCRIPT else SHORT


@lru_cache
def _long_text() -> str:
    """Numbers, drawn once for all, that the demo model's tokenizer makes about `LONG_TOKENS` tokens of."""
    from tokenizers import Tokenizer

    count = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode
    random, words = Random(1), list[str]()
    while len(count(" ".join(words)).ids) < LONG_TOKENS:
        words += [str(random.randrange(1000)) for _ in range(20)]
    return " ".join(words)
