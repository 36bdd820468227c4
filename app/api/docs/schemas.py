"""The answers as `/docs` shows them. No answer passes through these models: tests compare them with real answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict

from app.protocol.item_types import ITEM_TYPES
from app.protocol.requests.fields import OneOf
from app.protocol.types import Json


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Partial(Shape):
    """Fields with a default may be absent."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class Error(Shape):
    message: str
    type: Literal["invalid_request_error", "server_error", "requests", "tokens", "insufficient_quota"]
    param: str | None
    code: str | None


class ErrorBody(Shape):
    """Every error, whatever its status."""

    error: Error

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "'prompt' is not supported yet.",
                        "type": "invalid_request_error",
                        "param": "prompt",
                        "code": "unsupported_parameter",
                    }
                }
            ]
        }
    )


class Live(Shape):
    status: Literal["live"]


class ModelsReady(Shape):
    ready: list[str]
    without_worker: list[str]


class Ready(Shape):
    status: Literal["ready", "degraded", "not_ready", "stopping"]
    missing: list[Literal["postgres", "schema", "redis", "workers"]] | None = None
    """Like `models` left out for a caller without an API key, where one is asked for."""
    models: ModelsReady | None = None


class Architecture(Shape):
    input_modalities: list[Literal["text", "image"]]
    output_modalities: list[Literal["text"]]


class Model(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None
    """For a LoRA adapter: its base model."""
    max_model_len: int | None
    context_length: int | None
    """Both are the tokens of prompt and output together; null if no worker of the model has registered yet."""
    architecture: Architecture
    supported_parameters: list[str]
    reasoning_efforts: list[str]
    tool_types: list[str]


class CodexModel(BaseModel):
    """The entry of a model in Codex's own form. Codex decides what its fields are."""

    model_config = ConfigDict(extra="allow")

    slug: str
    context_window: int | None
    supported_reasoning_levels: list[Json]
    input_modalities: list[str]
    apply_patch_tool_type: str | None
    base_instructions: str


class ModelList(Partial):
    """`models` is there if the request has `client_version`."""

    object: Literal["list"]
    data: list[Model]
    models: list[CodexModel] = []


class Deleted(Shape):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class OutputTextPart(Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[Json]
    logprobs: list[Json]


class RefusalPart(Shape):
    type: Literal["refusal"]
    refusal: str


class OutputMessageItem(Partial):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputTextPart | RefusalPart]
    phase: Literal["commentary", "final_answer"] = "final_answer"
    """For models that tell a preamble from an answer."""


class ReasoningText(Shape):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(Shape):
    type: Literal["summary_text"]
    text: str


class ReasoningItem(Partial):
    type: Literal["reasoning"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: str = ""
    """If `include` asks for it, once the item is done."""


class FunctionCallItem(Partial):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    namespace: str = ""
    """Only of a function in a namespace."""
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


class CustomToolCallItem(Partial):
    type: Literal["custom_tool_call"]
    id: str
    call_id: str
    name: str
    namespace: str = ""
    """Only of a tool in a namespace."""
    input: str
    status: Literal["in_progress", "completed", "incomplete"]


class ToolSearchCallItem(Shape):
    type: Literal["tool_search_call"]
    id: str
    call_id: str
    execution: Literal["client"]
    arguments: Json
    status: Literal["in_progress", "completed"]


Running = Literal["in_progress", "completed", "incomplete", "failed"]


class CodeInterpreterCallItem(Shape):
    type: Literal["code_interpreter_call"]
    id: str
    code: str
    container_id: str
    outputs: list[Json] | None
    status: Running | Literal["interpreting"]


class WebSearchCallItem(Shape):
    type: Literal["web_search_call"]
    id: str
    action: Json
    status: Running | Literal["searching"]


class McpCallItem(Shape):
    type: Literal["mcp_call"]
    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: Json | None
    approval_request_id: str | None
    status: Running


class McpListToolsItem(Shape):
    type: Literal["mcp_list_tools"]
    id: str
    server_label: str
    tools: list[Json]
    error: str | None


class McpApprovalRequestItem(Shape):
    type: Literal["mcp_approval_request"]
    id: str
    server_label: str
    name: str
    arguments: str


class Item(BaseModel):
    """Any item, with the fields of its type."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Annotated[str, OneOf(ITEM_TYPES)]


class ItemList(Shape):
    """A page of items."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Conversation(Shape):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(Shape):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class InputTokensDetails(Partial):
    """Lists have one number for each turn, if the response had more than one turn."""

    cached_tokens: int
    cache_write_tokens: int
    input_tokens_per_turn: list[int] = []
    cached_tokens_per_turn: list[int] = []


class OutputTokensDetails(Partial):
    """As the input's details. `tool_output_tokens` are those of hosted tools' results, input of the next turn."""

    reasoning_tokens: int
    tool_output_tokens: int = 0
    output_tokens_per_turn: list[int] = []
    tool_output_tokens_per_turn: list[int] = []


class Usage(Shape):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class InputTokens(Shape):
    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactionItem(Shape):
    """`encrypted_content` is empty until the compaction is completed."""

    type: Literal["compaction"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    encrypted_content: str


class Compaction(Shape):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[CompactionItem]
    usage: Usage


class ResponseError(Shape):
    code: str
    message: str


class IncompleteDetails(Shape):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseConversation(Shape):
    id: str


class Response(Partial):
    """A response in any state. Times are epoch seconds."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    instructions: str | None
    output: list[
        OutputMessageItem
        | ReasoningItem
        | FunctionCallItem
        | CustomToolCallItem
        | ToolSearchCallItem
        | CodeInterpreterCallItem
        | WebSearchCallItem
        | McpCallItem
        | McpListToolsItem
        | McpApprovalRequestItem
        | CompactionItem
    ]
    usage: Usage | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    max_output_tokens: int | None
    metadata: dict[str, str]
    store: bool
    background: bool
    service_tier: Literal["default", "flex", "priority"]
    text: Json
    tools: list[Json]
    tool_choice: Literal["none", "auto", "required"] | Json
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    top_logprobs: int
    reasoning: Json | None
    max_tool_calls: int | None
    previous_response_id: str | None
    conversation: ResponseConversation | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: Literal["in_memory", "24h"] | None
    user: str | None
    omitted_tools: list[str] = []
    """Types of tools of the request that this server leaves out, if there were any."""
    # With `enable_response_messages`, once the response has ended.
    input_messages: list[Json] = []
    output_messages: list[Json] = []
