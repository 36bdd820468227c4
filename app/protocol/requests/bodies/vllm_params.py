"""vLLM's own parameters, in vLLM's ranges: a request may have them beside the fields of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from app.protocol.requests.base import RequestModel, check_text_or_list, text_or_list
from app.protocol.requests.fields import MAX_INT, MAX_SEED
from app.protocol.requests.validation import refused
from app.protocol.types import Json

MAX_STOPS = 16
MAX_LIST = 1024

TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LIST)]
Word = Annotated[str, Field(min_length=1, max_length=256)]
Seconds = Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)]

Stop = Annotated[
    Annotated[Word, Tag("<text>")]
    | Annotated[list[Word], Field(min_length=1, max_length=MAX_STOPS, fail_fast=True), Tag("<list>")],
    Discriminator(text_or_list),
    BeforeValidator(check_text_or_list),
]


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


class Extras(RequestModel):
    """vLLM's parameters in the body of a request."""

    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    ignore_eos: bool | None = None
    stop: Stop | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: Annotated[list[Word], Field(min_length=1, max_length=MAX_LIST, fail_fast=True)] | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    skip_special_tokens: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    chat_template_kwargs: Annotated[Json | None, BeforeValidator(_check_template_args)] = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=MAX_INT)] | None = None

    def extra(self) -> Json:
        """Returns the parameters that the client sent; `stop` is always a list."""
        sent = {name: value for name in EXTRAS if (value := getattr(self, name)) is not None}
        if isinstance(stop := sent.get("stop"), str):
            sent["stop"] = [stop]
        return sent


MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "top_k": "sample among this many of the most likely tokens; -1 or 0: among all tokens",
        "min_p": "sample among tokens that are at least this likely, as a share of the most likely token",
        "repetition_penalty": "above 1: tokens that the prompt or the output already has become less likely",
        "seed": "makes sampling repeatable, as far as the engine can",
        "min_tokens": "the output does not end before this many tokens",
        "ignore_eos": "continue after the model's end token",
        "stop": f"a string, or up to {MAX_STOPS}, before which the output ends",
        "include_stop_str_in_output": "the output ends after the stop string",
        "stop_token_ids": "tokens that end the output",
        "bad_words": "words that the model never writes",
        "logit_bias": "token id -> bias between -100 and 100",
        "allowed_token_ids": "the only tokens that the model may write",
        "skip_special_tokens": "false: special tokens are part of the text",
        "thinking_token_budget": "the maximum number of reasoning tokens",
        "chat_template_kwargs": "arguments of the chat template; they override the model's `chat_template_args`",
        "cache_salt": "requests share cached prefixes only if they have the same salt",
        "priority": "the engine's scheduler takes lower numbers first; it overrides the order of `service_tier`",
    }
)
"""The table in docs/protocol.md; tests compare it with the page and with the fields."""

EXTRAS = tuple(MEANINGS)
