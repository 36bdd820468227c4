"""vLLM's log probabilities to the protocol's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from app.protocol.types import Json

_MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot express; vLLM's API uses the same number."""


class LogprobReader:
    """Makes `{token, bytes, logprob, top_logprobs}` of each token, for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._text_and_bytes = lru_cache(maxsize=4096)(self._decoded)

    def read(self, token_ids: Sequence[int], found: Sequence[Mapping[int, Any]] | None, top: int) -> tuple[Json, ...]:
        """One object for each token, with the `top` likeliest tokens in its position, likeliest first."""
        if found is None:
            return ()
        return tuple(self._object(token, found[index], top) for index, token in enumerate(token_ids))

    def _object(self, token: int, found: Mapping[int, Any], top: int) -> Json:
        ranked = sorted(found.items(), key=lambda pair: pair[1].rank or 0)
        likeliest = [self._entry(token_id, logprob.logprob) for token_id, logprob in ranked[:top]]
        return {**self._entry(token, found[token].logprob), "top_logprobs": likeliest}

    def _entry(self, token: int, logprob: float) -> Json:
        text, data = self._text_and_bytes(token)
        return {"token": text, "bytes": list(data), "logprob": max(logprob, _MIN_LOGPROB)}

    def _decoded(self, token: int) -> tuple[str, bytes]:
        """A token's text and bytes; those of part of a character come from the token's name, if it is byte-level."""
        text: str = self._tokenizer.decode([token])
        if "\ufffd" in text:
            name = self._tokenizer.convert_ids_to_tokens(token)
            if isinstance(name, str) and all(char in _BYTES for char in name):
                return text, bytes(_BYTES[char] for char in name)
        return text, text.encode(errors="replace")


def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level BPE names bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_letters()
