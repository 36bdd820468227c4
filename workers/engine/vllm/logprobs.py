"""vLLM's log probabilities -> the protocol's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from workers.engine.output_format import Json

_LEAST = -9999.0
"""Stands for minus infinity, which JSON has no word for; vLLM's API says the same."""


class LogprobReader:
    """Makes `{token, bytes, logprob, top_logprobs}` of each token, for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._word = lru_cache(maxsize=4096)(self._decoded)

    def read(self, token_ids: Sequence[int], found: Sequence[Mapping[int, Any]] | None, most: int) -> tuple[Json, ...]:
        """One object for each token, with its `most` likeliest rivals, likeliest first."""
        if found is None:
            return ()
        return tuple(self._object(token, found[place], most) for place, token in enumerate(token_ids))

    def _object(self, token: int, found: Mapping[int, Any], most: int) -> Json:
        ranked = sorted(found.items(), key=lambda pair: pair[1].rank or 0)
        top = [self._entry(token_id, logprob.logprob) for token_id, logprob in ranked[:most]]
        return {**self._entry(token, found[token].logprob), "top_logprobs": top}

    def _entry(self, token: int, logprob: float) -> Json:
        text, data = self._word(token)
        return {"token": text, "bytes": list(data), "logprob": max(logprob, _LEAST)}

    def _decoded(self, token: int) -> tuple[str, bytes]:
        """A token's text and bytes; part of a character has bytes of its own where the tokenizer tells them."""
        text: str = self._tokenizer.decode([token])
        if "\ufffd" in text:
            name = self._tokenizer.convert_ids_to_tokens(token)
            if isinstance(name, str) and all(char in _BYTES for char in name):
                return text, bytes(_BYTES[char] for char in name)
        return text, text.encode(errors="replace")


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level BPE writes bytes with (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_letters()
