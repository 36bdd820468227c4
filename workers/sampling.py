"""Sampling parameters of a stored request, and whether its sampler has a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.engine.base import Sampling


def sampling_of(request: Mapping[str, Any]) -> Sampling:
    """What the engine needs of a request (app/protocol/request.py)."""
    return Sampling(
        temperature=request["temperature"],
        top_p=request["top_p"],
        max_tokens=request["max_output_tokens"],
        presence_penalty=request["presence_penalty"],
        frequency_penalty=request["frequency_penalty"],
        extra=request["extra"],
    )


def is_stateless(sampling: Sampling) -> bool:
    """Whether the next token depends on the tokens so far only, not on how many of them were sampled.

    Only then may a response go on from prompt + committed tokens alone: penalties count output tokens,
    a seed counts draws, `min_tokens` counts both. (A temperature without a seed promises nothing.)
    """
    extra = sampling.extra
    return not (
        sampling.presence_penalty
        or sampling.frequency_penalty
        or extra.get("repetition_penalty", 1.0) != 1.0
        or extra.get("seed") is not None
        or extra.get("min_tokens", 0)
    )
