"""A request for a response: the fields that clients may send, and what of them is stored.

`CreateResponse` has a row for every field of openai's ResponseCreateParams (a test holds it against the package)
and for vLLM's sampling extras. A field of type `Only` is known, but refused unless it says what we do anyhow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from app.protocol.errors import InvalidRequest
from app.protocol.fields import MAX_INT, MAX_SEED, Metadata, Only, Penalty, Text, Tokens
from app.protocol.items import Edge, Item, Json
from app.protocol.strict_json import decode_object
from app.protocol.validation import validate, wrong_kind

TEXT_FORMAT: Json = {"type": "text"}


def _check_input(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise wrong_kind("a string or an array", value)
    return value


def _input_tag(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<items>"


Input = Annotated[
    Annotated[str, Field(min_length=1), Tag("<text>")]
    | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag("<items>")],
    Discriminator(_input_tag),
    BeforeValidator(_check_input),
]


class Reasoning(Edge):
    """How a reasoning model thinks."""

    effort: Annotated[str | None, Only()] = None
    summary: Annotated[str | None, Only()] = None
    generate_summary: Annotated[str | None, Only()] = None
    context: Annotated[str | None, Only(("auto",))] = None
    mode: Annotated[str | None, Only(("standard",))] = None


class TextConfig(Edge):
    """The form of the answer's text."""

    format: Annotated[Json | None, Only((TEXT_FORMAT,))] = None
    verbosity: Annotated[str | None, Only(("medium",))] = None


class StreamOptions(Edge):
    include_obfuscation: Annotated[bool | None, Only((False,))] = None


class PromptCacheOptions(Edge):
    comparison_response_id: Annotated[str | None, Only()] = None
    mode: Annotated[str | None, Only(("implicit",))] = None
    prewarm: Annotated[bool | None, Only((False,))] = None
    ttl: Annotated[str | None, Only()] = None


class Image(Edge):
    context_compression: Annotated[str | None, Only(("auto", "disabled"))] = None


EXAMPLE: Json = {"model": "longhaul-demo", "input": "Who are you?", "background": True}


class CreateResponse(Edge):
    """The body of `POST /v1/responses`."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    model: Annotated[str, Field(min_length=1)]
    input: Input
    instructions: str | None = None
    background: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_output_tokens: Tokens | None = None

    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    service_tier: Annotated[str | None, Only(("auto", "default"))] = None
    parallel_tool_calls: bool | None = None
    tools: Annotated[list[Json] | None, Only(([],))] = None
    tool_choice: Annotated[str | None, Only(("auto", "none"))] = None
    truncation: Annotated[str | None, Only(("disabled",))] = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    top_logprobs: Annotated[int | None, Only((0,))] = None
    include: Annotated[list[str] | None, Only(([],))] = None
    stream_options: StreamOptions | None = None
    max_tool_calls: Annotated[int | None, Only()] = None
    previous_response_id: Annotated[str | None, Only()] = None
    conversation: Annotated[Json | None, Only()] = None
    context_management: Annotated[list[Json] | None, Only(([],))] = None
    prompt: Annotated[Json | None, Only()] = None
    moderation: Annotated[Json | None, Only()] = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Annotated[str | None, Only(("in_memory",))] = None
    access_programs: Annotated[Json | None, Only(({},))] = None
    image: Image | None = None

    # vLLM's own sampling parameters, in vLLM's ranges.
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    ignore_eos: bool | None = None


SAMPLING_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
)
"""What OpenAI documents; a served model's own defaults go before them."""

EXTRAS = ("top_k", "min_p", "repetition_penalty", "seed", "min_tokens", "ignore_eos")

_AS_SENT = ("instructions", "max_output_tokens", "user", "safety_identifier", "prompt_cache_key")

_UNSUPPORTED: Mapping[str, Any] = MappingProxyType(
    {"reasoning": None, "max_tool_calls": None, "previous_response_id": None, "top_logprobs": 0}
)
"""Fields that say nothing yet, as every stored request has them."""


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request that was checked."""

    fields: CreateResponse

    @property
    def model(self) -> str:
        return self.fields.model

    @property
    def background(self) -> bool:
        return bool(self.fields.background)

    @property
    def stream(self) -> bool:
        return bool(self.fields.stream)

    def stored(self, response_id: str, defaults: Mapping[str, float]) -> Json:
        """The request as the store keeps it and a worker reads it: every key is always there.

        `defaults` are the served model's sampling parameters, for what the client left open.
        """
        fields = self.fields
        text = fields.text or TextConfig()
        verbosity = {} if text.verbosity is None else {"verbosity": text.verbosity}
        return {
            "model": fields.model,
            "input": self._items(response_id),
            "metadata": fields.metadata or {},
            "store": fields.store is not False,
            "stream": self.stream,
            "background": self.background,
            "tools": [],
            "tool_choice": fields.tool_choice or "auto",
            "truncation": "disabled",
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "text": {"format": TEXT_FORMAT, **verbosity},
            "service_tier": "default",
            **_UNSUPPORTED,
            **{name: getattr(fields, name) for name in _AS_SENT},
            **self._sampling(defaults),
            "extra": {name: value for name in EXTRAS if (value := getattr(fields, name)) is not None},
        }

    def _items(self, response_id: str) -> list[Json]:
        suffix = response_id.split("_", 1)[-1]
        if isinstance(self.fields.input, str):
            part = {"type": "input_text", "text": self.fields.input}
            item = {"type": "message", "id": f"msg_{suffix}_in0", "status": "completed", "role": "user"}
            return [{**item, "content": [part]}]
        return [item.stored(f"msg_{suffix}_in{index}") for index, item in enumerate(self.fields.input)]

    def _sampling(self, defaults: Mapping[str, float]) -> dict[str, float]:
        usual = {**SAMPLING_DEFAULTS, **defaults}
        sent = {name: getattr(self.fields, name) for name in SAMPLING_DEFAULTS}
        return {name: float(usual[name] if value is None else value) for name, value in sent.items()}


def parse_request(body: bytes) -> ResponseRequest:
    """The request in `body`. Raises InvalidRequest with one sentence about the first field at fault."""
    fields = validate(CreateResponse, decode_object(body))
    limit, least = fields.max_output_tokens, fields.min_tokens
    if limit is not None and least is not None and least > limit:
        message = f"Invalid 'min_tokens': expected at most 'max_output_tokens' ({limit}), but got {least} instead."
        raise InvalidRequest(message, "min_tokens", "integer_above_max_value")
    return ResponseRequest(fields)
