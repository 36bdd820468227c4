"""`Sampling` to vLLM's SamplingParams, and whether a sampler has a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm import SamplingParams
from vllm.exceptions import VLLMError
from vllm.sampling_params import RequestOutputKind

from workers.engine.base import InvalidSampling, Sampling
from workers.engine.vllm.errors import error_message

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
"""Parameters that a request may set besides `Sampling`'s own fields. Excluded are stop strings (the engine has no
detokenizer), several choices, and what decides the form of the output."""
_NOT_SAMPLED = frozenset({"cache_salt"})
_MAX = {"top_k": 2**31 - 1, "min_tokens": 2**31 - 1, "seed": 2**63 - 1}
"""Bounds that vLLM does not check: a larger number would break the engine for all requests."""
MAX_STOP_TOKENS = 128
MAX_BAD_TOKENS = 1024
"""What vLLM's second model runner holds of a request, end tokens of the model included, and words with and without a
blank before them. More of them end the engine."""
_MAX_BAD_CHARS = 16_384
"""Characters of bad words that are worth counting their tokens."""
_STATEFUL: Mapping[str, tuple[Any, ...]] = {
    "bad_words": (None, []),
    "min_tokens": (None, 0),
    "repetition_detection": (None,),
    "repetition_penalty": (None, 1.0),
    "seed": (None,),
    "structured_outputs": (None,),
    "thinking_token_budget": (None,),
}
"""Parameters that give the sampler a state, each with the values that do not."""
_PARAMS: TypeAdapter[Any] = TypeAdapter(SamplingParams)


def has_state(sampling: Sampling) -> bool:
    """Whether the next token depends on which of the tokens before it were sampled.

    If not, a request may continue from prompt + committed tokens alone. Penalties count output tokens, a seed counts
    draws, `min_tokens` counts both, and a grammar advances with the output. (A temperature without a seed promises
    nothing.)
    """
    return bool(
        sampling.structured
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or any(sampling.extra.get(name) not in without for name, without in _STATEFUL.items())
    )


def has_grammar(sampling: Sampling) -> bool:
    return sampling.structured is not None or sampling.extra.get("structured_outputs") is not None


def sampling_params(sampling: Sampling, room: int) -> SamplingParams:
    """Parameters for deltas of token ids without text, at most `room` tokens. Raises InvalidSampling, which names the
    parameter."""
    for name, value in sampling.extra.items():
        if name not in _EXTRAS:
            raise InvalidSampling(f"{name} is not a sampling parameter of this engine")
        if name in _MAX and isinstance(value, int) and abs(value) > _MAX[name]:
            raise InvalidSampling(f"{name} must be at most {_MAX[name]}")
    try:
        params = _PARAMS.validate_python(_values(sampling, room))
    except (ValidationError, VLLMError, ValueError, TypeError) as error:
        raise InvalidSampling(error_message(error)) from None
    params.output_kind = RequestOutputKind.DELTA
    params.detokenize = False
    return params


def check_stop_tokens(sampling: Sampling, end_tokens: frozenset[int]) -> None:
    """Raises InvalidSampling if the engine cannot hold these stop tokens back until `min_tokens`."""
    stops = frozenset(sampling.extra.get("stop_token_ids") or ()) - end_tokens
    room = MAX_STOP_TOKENS - len(end_tokens)
    if sampling.extra.get("min_tokens") and len(stops) > room:
        raise InvalidSampling(f"stop_token_ids: with min_tokens, this model takes at most {room} (got {len(stops)})")


def check_bad_words(sampling: Sampling, count: Callable[[str], int]) -> None:
    """Raises InvalidSampling if the bad words have too many tokens. `count` counts those of a text."""
    words = sampling.extra.get("bad_words") or ()
    if sum(map(len, words)) > _MAX_BAD_CHARS:
        raise InvalidSampling(f"bad_words: expected at most {_MAX_BAD_CHARS} characters in all")
    tokens = sum(count(word.lstrip()) + count(" " + word.lstrip()) for word in words)
    if tokens > MAX_BAD_TOKENS:
        raise InvalidSampling(
            f"bad_words: expected at most {MAX_BAD_TOKENS} tokens in all, with and without a blank before each word "
            f"(got {tokens})"
        )


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
