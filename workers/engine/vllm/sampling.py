"""`Sampling` to vLLM's SamplingParams, and whether a sampler has a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm import SamplingParams
from vllm.exceptions import VLLMError
from vllm.sampling_params import RequestOutputKind

from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from workers.engine.base import InvalidSampling, Sampling, check_extra
from workers.engine.vllm.errors import sampling_message

MAX_STOP_TOKENS = 128
MAX_BAD_TOKENS = 1024
"""vLLM's second model runner has room for so many stop tokens, those of the model included, and for so many tokens of
bad words, with and without a blank before them. One more ends the engine."""
_MAX_BAD_CHARS = 16_384
"""Characters of bad words that are worth counting their tokens."""
_STATELESS = {name: param.stateless for name, param in ENGINE_PARAMS.items() if param.stateless is not None}
"""Parameters that may give the sampler a state, each with the values that do not."""
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
        or any(sampling.extra.get(name) not in without for name, without in _STATELESS.items())
    )


def sampling_params(sampling: Sampling, room: int) -> SamplingParams:
    """Parameters for deltas of token ids without text, at most `room` tokens. Raises InvalidSampling, which names the
    parameter."""
    check_extra(sampling.extra)
    try:
        params = _PARAMS.validate_python(_values(sampling, room))
    except (ValidationError, VLLMError, ValueError, TypeError) as error:
        raise InvalidSampling(sampling_message(error)) from None
    params.output_kind = RequestOutputKind.DELTA
    params.detokenize = False
    return params


def check_stop_tokens(sampling: Sampling, end_tokens: frozenset[int]) -> None:
    """Raises InvalidSampling if the engine cannot hold these stop tokens back until `min_tokens`."""
    stops = frozenset(sampling.extra.get("stop_token_ids") or ()) - end_tokens
    room = MAX_STOP_TOKENS - len(end_tokens)
    if sampling.extra.get("min_tokens") and len(stops) > room:
        raise InvalidSampling(f"stop_token_ids: with min_tokens, this model takes at most {room} (got {len(stops)})")


def check_bad_words(sampling: Sampling, count: Callable[[list[str]], int]) -> None:
    """Raises InvalidSampling if the bad words have too many tokens. `count` counts those of some texts together."""
    words = sampling.extra.get("bad_words") or ()
    if sum(map(len, words)) > _MAX_BAD_CHARS:
        raise InvalidSampling(f"bad_words: expected at most {_MAX_BAD_CHARS} characters in all")
    tokens = count([blank + word.lstrip() for word in words for blank in ("", " ")]) if words else 0
    if tokens > MAX_BAD_TOKENS:
        raise InvalidSampling(
            f"bad_words: expected at most {MAX_BAD_TOKENS} tokens in all, with and without a blank before each word "
            f"(got {tokens})"
        )


def _values(sampling: Sampling, room: int) -> dict[str, Any]:
    structured = {"structural_tag": sampling.structured.tag} if sampling.structured else None
    extra = {name: value for name, value in sampling.extra.items() if ENGINE_PARAMS[name].reader == "sampler"}
    if sampling.structured and sampling.structured.barred:
        extra["logit_bias"] = {**(extra.get("logit_bias") or {}), **dict.fromkeys(sampling.structured.barred, -100.0)}
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
