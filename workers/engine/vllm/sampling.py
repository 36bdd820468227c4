"""Sampling -> vLLM's SamplingParams, and whether a sampler has a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm import SamplingParams
from vllm.exceptions import VLLMError
from vllm.sampling_params import RequestOutputKind

from workers.engine.base import InvalidSampling, Sampling
from workers.engine.vllm.errors import one_line

_EXTRAS = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "cache_salt",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "min_tokens",
        "repetition_detection",
        "repetition_penalty",
        "seed",
        "stop_token_ids",
        "structured_outputs",
        "thinking_token_budget",
        "top_k",
    }
)
"""What a request may set beside `Sampling`'s own fields. Not: stop strings (there is no detokenizer in the
engine), several choices, and what decides the form of the output."""
_NOT_SAMPLED = frozenset({"cache_salt"})
_MOST = {"top_k": 2**31 - 1, "min_tokens": 2**31 - 1, "seed": 2**63 - 1}
"""Bounds that vLLM does not check: a larger number would break the engine for everybody."""
_FORGETFUL: Mapping[str, tuple[Any, ...]] = {
    "bad_words": (None, []),
    "min_tokens": (None, 0),
    "repetition_detection": (None,),
    "repetition_penalty": (None, 1.0),
    "seed": (None,),
    "structured_outputs": (None,),
    "thinking_token_budget": (None,),
}
"""Extras that give the sampler a memory, with the values that do not."""
_PARAMS: TypeAdapter[Any] = TypeAdapter(SamplingParams)


def has_memory(sampling: Sampling) -> bool:
    """Whether the next token depends on how many of the tokens before it were sampled.

    If not, a request may go on from prompt + committed tokens alone: penalties count output tokens, a seed
    counts draws, `min_tokens` counts both, and a grammar walks over the output. (A temperature without a
    seed promises nothing.)
    """
    return bool(
        sampling.structured
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or any(sampling.extra.get(name) not in without for name, without in _FORGETFUL.items())
    )


def sampling_params(sampling: Sampling, room: int) -> SamplingParams:
    """Deltas of bare token ids; at most `room` of them. Raises InvalidSampling, which names the parameter."""
    for name, value in sampling.extra.items():
        if name not in _EXTRAS:
            raise InvalidSampling(f"{name} is not a sampling parameter of this engine")
        if name in _MOST and isinstance(value, int) and abs(value) > _MOST[name]:
            raise InvalidSampling(f"{name} must be at most {_MOST[name]}")
    try:
        params = _PARAMS.validate_python(_values(sampling, room))
    except (ValidationError, VLLMError, ValueError, TypeError) as error:
        raise InvalidSampling(one_line(error)) from None
    params.output_kind = RequestOutputKind.DELTA
    params.detokenize = False
    return params


def _values(sampling: Sampling, room: int) -> dict[str, Any]:
    structured = {"structural_tag": sampling.structured.tag} if sampling.structured else None
    extra = {name: value for name, value in sampling.extra.items() if name not in _NOT_SAMPLED}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tokens": room if sampling.max_tokens is None else min(sampling.max_tokens, room),
        "logprobs": sampling.logprobs,
        "structured_outputs": structured,
        **extra,
    }
