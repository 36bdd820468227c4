"""Sampling parameters of a stored request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.protocol.include import LOGPROBS
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from workers.engine.base import Sampling
from workers.engine.output_format import Structured

_OWN = frozenset(name for name, param in ENGINE_PARAMS.items() if param.reader == "worker")
"""Parameters that engines do not get. One that a newer version has accepted is refused by name (`check_extra`)."""


def sampling_of(
    request: Mapping[str, Any], structured: Structured | None = None, adapter: str | None = None
) -> Sampling:
    """The engine's sampling parameters for a request (app/protocol/requests/bodies/request.py).

    `top_p` 0 means the most likely token, as temperature 0 does; engines take no such `top_p`.
    """
    return Sampling(
        temperature=request["temperature"] if request["top_p"] else 0.0,
        top_p=request["top_p"] or 1.0,
        max_tokens=request["max_output_tokens"],
        presence_penalty=request["presence_penalty"],
        frequency_penalty=request["frequency_penalty"],
        logprobs=_logprobs(request),
        structured=structured,
        adapter=adapter,
        extra={name: value for name, value in request["extra"].items() if name not in _OWN},
    )


def remaining_sampling(sampling: Sampling, spent: int) -> Sampling:
    """The same for a later turn: earlier turns spent this many tokens of the answer's minimum and maximum."""
    if not spent:
        return sampling
    max_tokens = None if sampling.max_tokens is None else max(sampling.max_tokens - spent, 1)
    min_tokens = sampling.extra.get("min_tokens")
    extra = sampling.extra if min_tokens is None else {**sampling.extra, "min_tokens": max(min_tokens - spent, 0)}
    return replace(sampling, max_tokens=max_tokens, extra=extra)


def priority_of(request: Mapping[str, Any], priority: int) -> int:
    """The priority in the engine's own queue (lower goes first): the request's, or else its queue priority."""
    asked: int = request["extra"].get("priority", priority)
    return asked


def _logprobs(request: Mapping[str, Any]) -> int | None:
    """`top_logprobs` alone requests them too."""
    top: int = request["top_logprobs"]
    return top if top or LOGPROBS in (request.get("include") or ()) else None
