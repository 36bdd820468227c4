"""The body of `POST /v1/responses`: the fields that clients may send.

`CreateResponse` has every field of openai's ResponseCreateParams (a test compares it with the package) and vLLM's own
parameters. A field marked with `SupportedValues` is known, but most of its values are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from app.protocol.include import REFUSED_INCLUDES, SUPPORTED_INCLUDES
from app.protocol.requests.base import RequestModel, TextOrList, of_shape
from app.protocol.requests.bodies.text_config import Effort, Reasoning, TextConfig
from app.protocol.requests.bodies.vllm_params import Extras, Seconds
from app.protocol.requests.fields import (
    MAX_INCLUDED,
    MAX_INT,
    MAX_ITEMS,
    CacheRetention,
    CacheTtl,
    ClientMetadata,
    Metadata,
    ModelName,
    OneOf,
    Penalty,
    ServiceTier,
    SupportedValues,
    Text,
    Tokens,
)
from app.protocol.requests.items.any_item import CompactionTrigger, InputItem
from app.protocol.requests.items.tools import AdditionalTools, ToolSearchOutput
from app.protocol.requests.tools.any_tool import Tools
from app.protocol.requests.tools.choice import ToolChoice
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import refused
from app.protocol.types import Json

Input = TextOrList[str, Annotated[list[InputItem], Field(max_length=MAX_ITEMS, fail_fast=True)]]


def _refuse_unsupported(value: Any) -> Any:
    if isinstance(value, str) and (instead := REFUSED_INCLUDES.get(value)) is not None:
        raise refused(f"'{{path}}': '{value}' is not supported: {instead}.", "unsupported_parameter")
    return value


IncludeValue = Annotated[str, OneOf(SUPPORTED_INCLUDES), BeforeValidator(_refuse_unsupported)]
"""One value of `include`."""

ResponseId = Annotated[str, Field(min_length=1, max_length=128)]


class ConversationId(RequestModel):
    id: Annotated[str, Field(min_length=1, max_length=128)]


Conversation = Annotated[
    Annotated[str, Field(min_length=1, max_length=128), Tag("<id>")] | Annotated[ConversationId, Tag("<object>")],
    Discriminator(lambda value: "<id>" if isinstance(value, str) else "<object>"),
    of_shape("a string or an object", str, dict),
]


SummaryDelivery = Literal["sequential", "sequential_cutoff", "concurrent", "concurrent_cutoff"]


class StreamOptions(RequestModel):
    """`reasoning_summary_delivery` is Codex's, and a hint: a summary comes with its reasoning, before the answer."""

    include_obfuscation: bool | None = None
    reasoning_summary_delivery: SummaryDelivery | None = None


class BackgroundOptions(RequestModel):
    """When a background response is due, and which others it goes together with."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: Annotated[Text, Field(min_length=1)] | None = None


class PromptCacheOptions(RequestModel):
    """`mode` and `ttl` are hints: the engine keeps every prefix that fits, wherever it ends."""

    comparison_response_id: Annotated[str | None, SupportedValues()] = None
    mode: Literal["implicit", "explicit"] | None = None
    prewarm: Annotated[bool | None, SupportedValues((False,))] = None
    ttl: CacheTtl | None = None

    def stored(self) -> Json:
        """As openai's Response has them: with both fields, OpenAI's defaults among them."""
        return {"mode": self.mode or "implicit", "ttl": self.ttl or "30m"}


MIN_COMPACT_THRESHOLD = 1000


class ContextManagement(RequestModel):
    """A prompt of more tokens is compacted before the answer; null: of more than three quarters of the context."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=MIN_COMPACT_THRESHOLD, le=MAX_INT)] | None = None


class AccessPrograms(RequestModel):
    cyber: Annotated[str | None, SupportedValues(("standard",))] = None


class ImageOptions(RequestModel):
    context_compression: Annotated[str | None, SupportedValues(("auto", "disabled"))] = None

    def stored(self) -> Json:
        """What `auto` came to: no image is ever compressed here."""
        return {"context_compression": "disabled"}


class Prompt(RequestModel):
    """The fields that a prompt is made of: `POST /v1/responses` and `.../input_tokens` share them."""

    model: ModelName
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    conversation: Conversation | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: Effort | None = None
    """Another name of `reasoning.effort`: the chat completions API has it, and Open WebUI sends it here too."""
    truncation: Literal["auto", "disabled"] | None = None
    client_metadata: ClientMetadata | None = None

    @property
    def compacts(self) -> bool:
        """Whether the last item of `input` asks for a compaction."""
        items = self.input if isinstance(self.input, list) else []
        return bool(items) and isinstance(items[-1], CompactionTrigger)

    @property
    def kept_tools(self) -> list[Any]:
        """The tools that are not left out (omitted.py)."""
        return [tool for tool in self.tools or () if not isinstance(tool, OmittedTool)]

    @property
    def omitted_tools(self) -> list[str]:
        """The types of the tools that are left out, each once."""
        tools = (*(self.tools or ()), *self._item_tools())
        return list(dict.fromkeys(tool.sent["type"] for tool in tools if isinstance(tool, OmittedTool)))

    @property
    def loaded_tools(self) -> list[Any]:
        """The tools that items of `input` bring."""
        return [tool for tool in self._item_tools() if not isinstance(tool, OmittedTool)]

    def _item_tools(self) -> list[Any]:
        if not isinstance(self.input, list):
            return []
        sources = (item for item in self.input if isinstance(item, ToolSearchOutput | AdditionalTools))
        return [tool for item in sources for tool in item.tools]

    @property
    def conversation_id(self) -> str | None:
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationId) else conversation


class Shared(Extras):
    """The fields that a chat completion has with the same name and the same meaning."""

    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    service_tier: ServiceTier | None = None
    user: Text | None = None
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: CacheRetention | None = None
    moderation: Annotated[Json | None, SupportedValues()] = None

    # Longhaul's own, in seconds.
    queue_timeout: Seconds | None = None
    run_timeout: Seconds | None = None


class CreateResponse(Prompt, Shared):
    """The body of `POST /v1/responses`. A request that continues something may leave `input` out."""

    background: bool | None = None
    background_options: BackgroundOptions | None = None

    max_output_tokens: Tokens | None = None
    include: Annotated[list[IncludeValue], Field(max_length=MAX_INCLUDED, fail_fast=True)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None

    stream_options: StreamOptions | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1, fail_fast=True)] | None = None
    prompt: Annotated[Json | None, SupportedValues()] = None
    access_programs: AccessPrograms | None = None
    image: ImageOptions | None = None

    # vLLM's, for models that speak harmony.
    previous_input_messages: Annotated[list[Json], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)] | None = (
        None
    )
    enable_response_messages: bool | None = None

    @property
    def completion_window(self) -> str:
        options = self.background_options
        return (options and options.completion_window) or "soonest"

    @property
    def continuation_id(self) -> str | None:
        return None if self.background_options is None else self.background_options.continuation_id
