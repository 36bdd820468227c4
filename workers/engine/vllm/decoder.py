"""Token ids -> text, by vLLM's incremental detokenizer (Rust for fast tokenizers, Python for others)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer


class VllmDecoder:
    """With `special`, special tokens are text too."""

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        self._stream = IncrementalDetokenizer.from_new_request(tokenizer, _REQUESTS[special])
        self._special = special
        self._held: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join([self._next(token_id) for token_id in token_ids])

    def _next(self, token_id: int) -> str:
        self._stream.token_ids.append(token_id)  # the Python one looks there
        text: str = self._stream.decode_next(token_id)
        if text:
            self._held.clear()
        else:
            self._held.append(token_id)
        return text

    def flush(self) -> str:
        held, self._held = self._held, []
        text: str = self._stream.tokenizer.decode(held, skip_special_tokens=not self._special) if held else ""
        return text


def _request(special: bool) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id="decoder",
        prompt_token_ids=[],
        mm_features=None,
        sampling_params=SamplingParams(skip_special_tokens=not special),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


_REQUESTS = {special: _request(special) for special in (False, True)}
