"""A second tokenizer of a model, which reads marks with a break in them (`control_marks.py`) as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from workers.engine.control_marks import HIDDEN_BREAK, SHOWN_BREAKS, ControlMarks, is_mark

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class TextMarks:
    """How the marks in callers' texts stay text for one model."""

    hidden: ControlMarks | None
    """Breaks that `encode` removes; None if the tokenizer cannot."""
    shown: ControlMarks
    """Breaks that the model reads."""
    encode: Encode | None
    """The prompt's tokens, for texts with hidden breaks."""
    folds: bool = False
    """The model's tokenizer takes other spellings (`<|IM_END|>`) for marks, too. `encode` does not."""


NO_MARKS = TextMarks(None, ControlMarks((), ""), None)
"""For a renderer that encodes contents apart from its own marks."""


def text_marks(tokenizer: Any, *, has_text: bool) -> TextMarks:
    """Found by trying all marks. `has_text`: the model's renderer can return text instead of tokens."""
    special, vocabulary = set(tokenizer.all_special_tokens), tokenizer.get_vocab()
    ids = {token: vocabulary[token] for token in special if token in vocabulary} | tokenizer.get_added_vocab()
    marks = {token: number for token, number in ids.items() if is_mark(token, special=token in special)}
    controls = set(marks.values())

    def own(text: str) -> list[int]:
        tokens: list[int] = list(tokenizer.encode(text, add_special_tokens=False))
        return tokens

    sample = "Hello, " + " world\n".join(marks) + "!"
    shown = next(
        made
        for made in (ControlMarks(marks, each) for each in SHOWN_BREAKS)
        if made.mark_break == SHOWN_BREAKS[-1] or controls.isdisjoint(own(made.in_value(sample)))
    )
    hidden, encode = ControlMarks(marks, HIDDEN_BREAK), _second(tokenizer) if has_text else None
    if encode is None or encode(sample) != own(sample) or not controls.isdisjoint(encode(hidden.in_value(sample))):
        return TextMarks(None, shown, None)
    others = " ".join(fold(mark) for mark in marks for fold in (str.upper, str.lower, _wide) if fold(mark) not in ids)
    return TextMarks(hidden, shown, encode, folds=not controls.isdisjoint(own(others)))


def _second(tokenizer: Any) -> Encode | None:
    """A copy that removes breaks once it has looked for control tokens; None if it is no tokenizer of `tokenizers`.

    It looks for control tokens in the text as it is, and not in the normalized one.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    about = json.loads(backend.to_str())
    about["added_tokens"] = [{**token, "normalized": False} for token in about["added_tokens"]]
    normalizers = [{"type": "Replace", "pattern": {"String": HIDDEN_BREAK}, "content": ""}, about["normalizer"]]
    about["normalizer"] = {"type": "Sequence", "normalizers": [each for each in normalizers if each]}
    about["truncation"] = about["padding"] = None
    second = Tokenizer.from_str(json.dumps(about))

    def encode(text: str) -> list[int]:
        tokens: list[int] = second.encode(text, add_special_tokens=False).ids
        return tokens

    return encode


def _wide(text: str) -> str:
    """The text in full-width characters, which some tokenizers read as ASCII."""
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text)
