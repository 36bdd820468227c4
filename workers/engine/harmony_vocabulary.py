"""Harmony's vocabulary (gpt-oss): its special tokens, and its tokenizer, which openai_harmony brings along."""

from __future__ import annotations

from functools import cache
from typing import Any

from openai_harmony import HarmonyEncodingName, load_harmony_encoding

START = "<|start|>"
END = "<|end|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
CALL = "<|call|>"
RETURN = "<|return|>"
CONSTRAIN = "<|constrain|>"
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
ASSISTANT = "assistant"

_SPECIAL = (START, END, CHANNEL, MESSAGE, CALL, RETURN, CONSTRAIN)
_SAMPLE = 'Hello, world!\n\n\tIt\'s 1234567 naïve 你好 👋: {"a": [1, null]}  def f(x):\r\n    return x  '


@cache
def encoding() -> Any:
    """openai_harmony's encoding. Loading it takes most of a second."""
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@cache
def special(name: str) -> int:
    """The id of a special token."""
    [token] = encoding().encode(name, allowed_special={name})
    return int(token)


@cache
def stop_tokens() -> tuple[int, ...]:
    """The tokens that end an answer: `<|return|>` and `<|call|>`."""
    return tuple(sorted(encoding().stop_tokens_for_assistant_actions()))


@cache
def message_ends() -> frozenset[int]:
    return frozenset(map(special, (END, CALL, RETURN)))


def encode(text: str) -> list[int]:
    """The tokens of plain text. A special token that is written in it is encoded as ordinary characters."""
    tokens: list[int] = encoding().encode(text, disallowed_special=())
    return tokens


def matches(tokenizer: Any) -> bool:
    """Whether a model's own tokenizer (of transformers) reads text as harmony does."""
    same = list(tokenizer.encode(_SAMPLE, add_special_tokens=False)) == encode(_SAMPLE)
    return same and all(tokenizer.convert_tokens_to_ids(name) == special(name) for name in _SPECIAL)
