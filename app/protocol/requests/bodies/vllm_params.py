"""vLLM's own parameters, in vLLM's ranges: a request may have them beside the fields of OpenAI's API.

`Extras` is the table of them: each field has its range and its `Param`. Every other list of them is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocol.requests.base import RequestModel, TextOrList
from app.protocol.requests.fields import MAX_INT, MAX_SEED
from app.protocol.requests.validation import refused
from app.protocol.types import Json

MAX_STOPS = 16
MAX_LIST = 1024

TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LIST)]
Word = Annotated[str, Field(min_length=1, max_length=256)]
Seconds = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]

Stop = TextOrList[Word, Annotated[list[Word], Field(min_length=1, max_length=MAX_STOPS, fail_fast=True)]]


def _check_token_key(key: Any) -> Any:
    if not (isinstance(key, str) and key.isascii() and key.isdecimal() and int(key[:11]) <= MAX_INT):
        raise refused("Invalid key in '{path}': expected a token id.", "invalid_value")
    return key


LogitBias = Annotated[
    dict[Annotated[str, BeforeValidator(_check_token_key)], Annotated[float, Field(ge=-100, le=100)]],
    Field(min_length=1, max_length=MAX_LIST),
]


RESERVED = ("add_generation_prompt", "chat_template", "continue_final_message", "messages", "tokenize", "tools")
"""Keys that `chat_template_kwargs` must not have: a template is a program that runs on the worker."""


def _check_template_args(value: Any) -> Any:
    for name in RESERVED:
        if isinstance(value, dict) and name in value:
            raise refused("'{path}' cannot be set.", "invalid_value", name)
    return value


@dataclass(frozen=True, slots=True)
class Param:
    """One of vLLM's parameters."""

    meaning: str
    """As docs/protocol.md has it."""
    reader: Literal["sampler", "engine", "worker"] = "sampler"
    """Who heeds it: vLLM's sampler, another part of the engine, or Longhaul's own code, which hides it from engines."""
    stateless: tuple[Any, ...] | None = None
    """If it can give the sampler a state: the values that do not (workers/engine/vllm/sampling.py)."""
    about_the_answer: bool = False
    """Whether it shapes the answer: a summary of the context is made without it."""


class Extras(RequestModel):
    """vLLM's parameters in the body of a request."""

    top_k: Annotated[
        int | None,
        Field(ge=-1, le=MAX_INT),
        Param("sample among this many of the most likely tokens; -1 or 0: among all tokens"),
    ] = None
    min_p: Annotated[
        float | None,
        Field(ge=0, le=1),
        Param("sample among tokens that are at least this likely, as a share of the most likely token"),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Field(gt=0, le=100),
        Param("above 1: tokens that the prompt or the output already has become less likely", stateless=(None, 1.0)),
    ] = None
    seed: Annotated[
        int | None,
        Field(ge=-MAX_SEED - 1, le=MAX_SEED),
        Param("makes sampling repeatable, as far as the engine can", stateless=(None,)),
    ] = None
    min_tokens: Annotated[
        int | None,
        Field(ge=0, le=MAX_INT),
        Param("the output does not end before this many tokens", stateless=(None, 0), about_the_answer=True),
    ] = None
    ignore_eos: Annotated[bool | None, Param("continue after the model's end token", about_the_answer=True)] = None
    stop: Annotated[
        Stop | None,
        Param(
            f"a string, or up to {MAX_STOPS}, before which the answer ends; in thoughts they do not count",
            "worker",
            about_the_answer=True,
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool | None, Param("the output ends after the stop string", "worker", about_the_answer=True)
    ] = None
    stop_token_ids: Annotated[TokenIds | None, Param("tokens that end the output", about_the_answer=True)] = None
    bad_words: Annotated[
        Annotated[list[Word], Field(min_length=1, max_length=MAX_LIST, fail_fast=True)] | None,
        Param("words that the model never writes", stateless=(None, []), about_the_answer=True),
    ] = None
    logit_bias: Annotated[LogitBias | None, Param("token id -> bias between -100 and 100", about_the_answer=True)] = (
        None
    )
    allowed_token_ids: Annotated[
        TokenIds | None, Param("the only tokens that the model may write", about_the_answer=True)
    ] = None
    skip_special_tokens: Annotated[
        bool | None, Param("false: special tokens are part of the text", "worker", about_the_answer=True)
    ] = None
    thinking_token_budget: Annotated[
        int | None, Field(ge=0, le=MAX_INT), Param("the maximum number of reasoning tokens", stateless=(None,))
    ] = None
    chat_template_kwargs: Annotated[
        Json | None,
        BeforeValidator(_check_template_args),
        Param("arguments of the chat template; they override the model's `chat_template_args`", "worker"),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Field(min_length=1, max_length=1024)] | None,
        Param("requests share cached prefixes only if they have the same salt", "engine"),
    ] = None
    priority: Annotated[
        int | None,
        Field(ge=-(2**31), le=MAX_INT),
        Param("the engine's scheduler takes lower numbers first; it overrides the order of `service_tier`", "worker"),
    ] = None

    def extra(self) -> Json:
        """Returns the parameters that the client sent; `stop` is always a list."""
        sent = {name: value for name in ENGINE_PARAMS if (value := getattr(self, name)) is not None}
        if isinstance(stop := sent.get("stop"), str):
            sent["stop"] = [stop]
        return sent


ENGINE_PARAMS: Mapping[str, Param] = MappingProxyType(
    {
        name: next(mark for mark in field.metadata if isinstance(mark, Param))
        for name, field in Extras.model_fields.items()
    }
)
"""By name; tests compare them with docs/protocol.md."""
