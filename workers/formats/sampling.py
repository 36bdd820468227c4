"""Sampling parameters of a stored request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.protocol.include import LOGPROBS
from workers.engine.base import Sampling
from workers.engine.output_format import Structured

OURS = frozenset(
    {"stop", "include_stop_str_in_output", "skip_special_tokens", "priority", "chat_template_kwargs"},
)
"""Extras that are not the sampler's: see `workers.formats`, and `priority_of`."""


def sampling_of(
    request: Mapping[str, Any], structured: Structured | None = None, adapter: str | None = None
) -> Sampling:
    """What the engine needs of a request (app/protocol/requests/request.py)."""
    return Sampling(
        temperature=request["temperature"],
        top_p=request["top_p"],
        max_tokens=request["max_output_tokens"],
        presence_penalty=request["presence_penalty"],
        frequency_penalty=request["frequency_penalty"],
        logprobs=_logprobs(request),
        structured=structured,
        adapter=adapter,
        extra={name: value for name, value in request["extra"].items() if name not in OURS},
    )


def remaining_sampling(sampling: Sampling, spent: int) -> Sampling:
    """The same for a turn behind others, which had `spent` tokens of what the whole answer may, or must, have."""
    if not spent:
        return sampling
    most = None if sampling.max_tokens is None else max(sampling.max_tokens - spent, 1)
    least = sampling.extra.get("min_tokens")
    extra = sampling.extra if least is None else {**sampling.extra, "min_tokens": max(least - spent, 0)}
    return replace(sampling, max_tokens=most, extra=extra)


def priority_of(request: Mapping[str, Any], priority: int) -> int:
    """Its place in the engine's own queue (lower goes first): the one it asks for, else its queue priority."""
    asked: int = request["extra"].get("priority", priority)
    return asked


def _logprobs(request: Mapping[str, Any]) -> int | None:
    """`top_logprobs` alone asks for them too."""
    most: int = request["top_logprobs"]
    return most if most or LOGPROBS in (request.get("include") or ()) else None
