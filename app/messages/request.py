"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`: fields that are honoured, hints, and refused ones.

Together they have every field of anthropic's MessageCreateParams, and of its beta (a test compares them with the
package). vLLM's parameters and Longhaul's mean the same as in `/v1/responses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from app.messages.blocks import Message, Texts
from app.messages.tools import McpServers, ToolChoice, Tools
from app.protocol.requests.base import RequestModel, TextOrList
from app.protocol.requests.bodies.vllm_params import MAX_STOPS, Extras, Seconds, Word
from app.protocol.requests.fields import MAX_INT, ModelName, SupportedValues, Tokens
from app.protocol.types import Json


class Thinking(RequestModel):
    """`budget_tokens` and `block_binding` are hints."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: Any = None


class JsonFormat(RequestModel):
    """The text is JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[Json, Field(alias="schema")]


class OutputConfig(RequestModel):
    """`task_budget` is a hint."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: Json | None = None


HINTS = frozenset({
    "betas", "billing_policy", "cache_control", "context_management", "diagnostics", "fallback_credit_token",
    "inference_geo", "metadata", "service_tier", "speed", "user_profile_id", "workspace_id",
})  # fmt: skip
"""Fields that no answer depends on: any value will do."""
_STOP = "send 'stop_sequences'"
REFUSED: Mapping[str, SupportedValues] = MappingProxyType(
    {
        "compaction": SupportedValues(instead="send the conversation to 'POST /v1/responses/compact'"),
        "container": SupportedValues(instead="code runs in a container of its own for each response"),
        "fallbacks": SupportedValues(([],), "send the request again with another 'model'"),
        "include_stop_str_in_output": SupportedValues((False,), "the text ends before a stop sequence"),
        "stop": SupportedValues(([],), _STOP),
        "thread": SupportedValues(instead="send all messages with each request"),
    }
)
"""Fields that are known, and cannot be honoured."""


class CountMessageTokens(
    RequestModel,
    example={"model": "longhaul-demo", "messages": [{"role": "user", "content": "Hi!"}]},
):
    """The body of `POST /v1/messages/count_tokens`: the fields that the prompt is made of."""

    model: ModelName
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    system: TextOrList[str, Texts] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    mcp_servers: McpServers | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    """The old name of `output_config.format`."""
    chat_template_kwargs: Json | None = None

    @property
    def format(self) -> JsonFormat | None:
        return self.output_format if self.output_config is None else self.output_config.format or self.output_format

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, sent: Any) -> Any:
        for name in sent:
            if name in REFUSED:
                REFUSED[name].check(sent[name], name)
        return {name: value for name, value in sent.items() if name not in REFUSED and name not in HINTS}


class CreateMessage(
    CountMessageTokens,
    Extras,
    example={"model": "longhaul-demo", "max_tokens": 256, "messages": [{"role": "user", "content": "Hi!"}]},
):
    """The body of `POST /v1/messages`."""

    max_tokens: Tokens
    stop_sequences: Annotated[list[Word], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    store: bool | None = None
    queue_timeout: Seconds | None = None
    run_timeout: Seconds | None = None


SAME = frozenset(Extras.model_fields) - REFUSED.keys() | {
    "model", "queue_timeout", "run_timeout", "store", "stream", "temperature", "top_p",
}  # fmt: skip
"""Fields that go into the response request as they are."""
