"""A request for a response: the fields that clients may send, and what of them is stored.

`CreateResponse` has a row for every field of openai's ResponseCreateParams (a test holds it against the package)
and for vLLM's own parameters. A field of type `Only` is known, but refused unless it says what we do anyhow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from app.protocol.include import LOGPROBS, NOT_INCLUDED, IncludeValue
from app.protocol.requests.base import RequestModel, check_text_or_list, text_or_list
from app.protocol.requests.consistency import check_consistent
from app.protocol.requests.fields import MAX_INT, Metadata, Penalty, SupportedValues, Text, Tokens
from app.protocol.requests.items import Item
from app.protocol.requests.mcp_tool import McpTool
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.text_config import Reasoning, TextConfig
from app.protocol.requests.tools import ToolChoice, Tools
from app.protocol.requests.validation import refused, validate, wrong_kind
from app.protocol.requests.vllm_params import Extras, Seconds
from app.protocol.types import Json

Input = Annotated[
    Annotated[str, Field(min_length=1), Tag("<text>")]
    | Annotated[list[Item], Field(min_length=1, fail_fast=True), Tag("<list>")],
    Discriminator(text_or_list),
    BeforeValidator(check_text_or_list),
]

COUNT = "count"
"""A stored request's `task`, where its prompt's tokens are to be counted and nothing is to be generated."""


def check_included(value: Any) -> Any:
    """For one member of `include`."""
    if isinstance(value, str) and value in NOT_INCLUDED:
        raise refused(f"'{{path}}': '{value}' is not supported yet.", "unsupported_parameter")
    return value


Included = Annotated[IncludeValue, BeforeValidator(check_included)]

ResponseId = Annotated[str, Field(min_length=1, max_length=128)]


class ConversationId(RequestModel):
    id: Annotated[str, Field(min_length=1, max_length=128)]


def _check_conversation(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise wrong_kind("a string or an object", value)
    return value


Conversation = Annotated[
    Annotated[str, Field(min_length=1, max_length=128), Tag("<id>")] | Annotated[ConversationId, Tag("<object>")],
    Discriminator(lambda value: "<id>" if isinstance(value, str) else "<object>"),
    BeforeValidator(_check_conversation),
]


class StreamOptions(RequestModel):
    include_obfuscation: Annotated[bool | None, SupportedValues((False,))] = None


class PromptCacheOptions(RequestModel):
    comparison_response_id: Annotated[str | None, SupportedValues()] = None
    mode: Annotated[str | None, SupportedValues(("implicit",))] = None
    prewarm: Annotated[bool | None, SupportedValues((False,))] = None
    ttl: Annotated[str | None, SupportedValues()] = None


class ImageOptions(RequestModel):
    context_compression: Annotated[str | None, SupportedValues(("auto", "disabled"))] = None


class Prompt(RequestModel):
    """What a prompt is made from: the part that `POST /v1/responses` and its helpers share."""

    model: Annotated[str, Field(min_length=1)]
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    conversation: Conversation | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationId) else conversation


EXAMPLE: Json = {"model": "longhaul-demo", "input": "Who are you?", "background": True}


class CreateResponse(Prompt, Extras):
    """The body of `POST /v1/responses`. `input` may be left out where there is something to go on with."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    background: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_output_tokens: Tokens | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Annotated[list[Included], Field(fail_fast=True)] | None = None

    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "fast"] | None = None
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None

    stream_options: StreamOptions | None = None
    context_management: Annotated[list[Json] | None, SupportedValues(([],))] = None
    prompt: Annotated[Json | None, SupportedValues()] = None
    moderation: Annotated[Json | None, SupportedValues()] = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Annotated[str | None, SupportedValues(("in_memory",))] = None
    access_programs: Annotated[Json | None, SupportedValues(({},))] = None
    image: ImageOptions | None = None

    # vLLM's, for models that speak harmony.
    previous_input_messages: Annotated[list[Json], Field(min_length=1, fail_fast=True)] | None = None
    enable_response_messages: bool | None = None

    # Longhaul's own, in seconds.
    queue_timeout: Seconds | None = None
    run_timeout: Seconds | None = None


SAMPLING_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
)
"""What OpenAI documents; a served model's own defaults go before them."""

TIERS: Mapping[str, str] = MappingProxyType({"auto": "default", "fast": "priority"})
"""Service tiers that are another name for one of ours."""

_AS_SENT = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request that was checked."""

    fields: CreateResponse
    body: Mapping[str, Any]
    """As it was sent."""
    task: str | None = None
    """COUNT, or None: generate."""

    @property
    def model(self) -> str:
        return self.fields.model

    @property
    def background(self) -> bool:
        return bool(self.fields.background)

    @property
    def stream(self) -> bool:
        return bool(self.fields.stream)

    @property
    def tier(self) -> str:
        """`default`, `flex` or `priority`."""
        sent = self.fields.service_tier or "auto"
        return TIERS.get(sent, sent)

    def fingerprint(self) -> bytes:
        """Of the body: the same for the same JSON value, however it was written."""
        return hashlib.sha256(orjson.dumps(self.body, option=orjson.OPT_SORT_KEYS)).digest()

    def stored(self, response_id: str, defaults: Mapping[str, float]) -> Json:
        """The request as the store keeps it and a worker reads it: every key is always there.

        `defaults` are the served model's sampling parameters, for what the client left open.
        """
        fields = self.fields
        conversation = fields.conversation_id
        return {
            "model": fields.model,
            "input": self._items(response_id),
            "conversation": None if conversation is None else {"id": conversation},
            "metadata": fields.metadata or {},
            "store": fields.store is not False,
            "stream": self.stream,
            "background": self.background,
            "tools": [tool.stored() for tool in fields.tools or ()],
            "tool_choice": self._tool_choice(),
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "truncation": fields.truncation or "disabled",
            "text": (fields.text or TextConfig()).stored(),
            "reasoning": None if fields.reasoning is None else fields.reasoning.stored(),
            "top_logprobs": fields.top_logprobs or 0,
            "include": self._include(),
            "service_tier": self.tier,
            **{name: getattr(fields, name) for name in _AS_SENT},
            **self._sampling(defaults),
            "extra": fields.extra(),
            "previous_input_messages": fields.previous_input_messages,
            "enable_response_messages": bool(fields.enable_response_messages),
            "secrets": {},
            "task": self.task,
        }

    def secrets(self) -> dict[str, dict[str, str]]:
        """Headers for MCP servers, by `server_label`: to be stored sealed, under `secrets`, and never shown."""
        tools = (tool for tool in self.fields.tools or () if isinstance(tool, McpTool))
        return {tool.server_label: headers for tool in tools if (headers := tool.secrets())}

    def _items(self, response_id: str) -> list[Json]:
        suffix = response_id.split("_", 1)[-1]
        sent = self.fields.input or []
        if isinstance(sent, str):
            part = {"type": "input_text", "text": sent}
            item = {"type": "message", "id": f"msg_{suffix}_in0", "status": "completed", "role": "user"}
            return [{**item, "content": [part]}]
        return [item.stored(f"{suffix}_in{index}") for index, item in enumerate(sent)]

    def _tool_choice(self) -> str | Json:
        choice = self.fields.tool_choice or "auto"
        return choice if isinstance(choice, str) else choice.stored()

    def _include(self) -> list[str]:
        """Whoever wants the most likely tokens wants log probabilities."""
        wanted = dict.fromkeys(self.fields.include or ())
        return list(wanted | ({LOGPROBS: None} if self.fields.top_logprobs else {}))

    def _sampling(self, defaults: Mapping[str, float]) -> dict[str, float]:
        usual = {**SAMPLING_DEFAULTS, **defaults}
        sent = {name: getattr(self.fields, name) for name in SAMPLING_DEFAULTS}
        return {name: float(usual[name] if value is None else value) for name, value in sent.items()}


P = TypeVar("P", bound=Prompt)


def checked(model: type[P], body: Mapping[str, Any]) -> P:
    """`body` as a `model` whose fields agree with each other. Raises InvalidRequest."""
    fields = validate(model, body)
    check_consistent(fields, body)
    return fields


def parse_request(body: bytes) -> ResponseRequest:
    """The request in `body`. Raises InvalidRequest with one sentence about the first field at fault."""
    sent = decode_object(body)
    return ResponseRequest(checked(CreateResponse, sent), sent)
