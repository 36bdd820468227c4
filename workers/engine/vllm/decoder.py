"""Token ids to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import decoders


class VllmDecoder:
    """See `workers.engine.output_format.Decoder`. With `special`, special tokens are text too."""

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = not special
        self._held: list[int] = []
        self._next = self._new_stream()

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join([self._read(token_id) for token_id in token_ids])

    def _read(self, token_id: int) -> str:
        lost = ""
        try:
            text = self._next(token_id)
        except Exception:  # broken UTF-8 can make the text shorter, which a stream of `tokenizers` does not survive
            lost, self._next = self.flush(), self._new_stream()
            text = self._next(token_id)
        if text:
            self._held.clear()
        else:
            self._held.append(token_id)
        return lost + text

    def flush(self) -> str:
        held, self._held = self._held, []
        return self._text(held) if held else ""

    def _text(self, token_ids: Sequence[int]) -> str:
        """Decodes these tokens alone, whatever came before."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=self._skip_special)
        return text

    def _new_stream(self) -> Callable[[int], str]:
        """Returns a function that takes tokens and returns the characters that each completes."""
        rust = getattr(self._tokenizer, "backend_tokenizer", None)
        if rust is None:
            return PythonStream(self._text).step
        stream = decoders.DecodeStream(skip_special_tokens=self._skip_special)
        return lambda token_id: stream.step(rust, token_id) or ""


class PythonStream:
    """What `DecodeStream` does, for tokenizers without a core in Rust. `text_of` decodes some tokens."""

    def __init__(self, text_of: Callable[[Sequence[int]], str]) -> None:
        self._text_of = text_of
        self._known: list[int] = []
        """The tokens of the last text: the text of the next ones depends on them (blanks between words)."""
        self._new: list[int] = []

    def step(self, token_id: int) -> str:
        """The characters that this token completes."""
        self._new.append(token_id)
        before, after = self._text_of(self._known), self._text_of([*self._known, *self._new])
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self._known, self._new = self._new, []
        return after[len(before) :]
