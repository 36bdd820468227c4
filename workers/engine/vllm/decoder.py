"""Token ids to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.engine.vllm import compat


class VllmDecoder:
    """See `workers.engine.output_format.Decoder`. With `special`, special tokens are text too."""

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self._stream = compat.TokenStream(tokenizer, special=special)
        self._held: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join([self._next(token_id) for token_id in token_ids])

    def _next(self, token_id: int) -> str:
        text = self._stream.next(token_id)
        if text:
            self._held.clear()
        else:
            self._held.append(token_id)
        return text

    def flush(self) -> str:
        held, self._held = self._held, []
        return self._stream.decode(held) if held else ""
