"""The answers as `/docs` shows them. No answer passes through these models: tests compare them with real answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from app.protocol.include import INCLUDED
from app.protocol.item_types import ITEM_TYPES
from app.protocol.requests.create_response import CreateResponse
from app.protocol.requests.fields import OneOf
from app.protocol.types import Json


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Partial(Shape):
    """Fields with a default may be absent."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class Error(Shape):
    message: str
    type: Literal["invalid_request_error", "server_error"]
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
    status: Literal["ready", "not_ready"]
    missing: list[str]
    models: ModelsReady


class Model(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Shape):
    object: Literal["list"]
    data: list[Model]


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


class ReasoningItem(Shape):
    type: Literal["reasoning"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[Json]
    content: list[ReasoningText]
    encrypted_content: str | None


class FunctionCallItem(Shape):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


class CustomToolCallItem(Shape):
    type: Literal["custom_tool_call"]
    id: str
    call_id: str
    name: str
    input: str
    status: Literal["in_progress", "completed", "incomplete"]


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
    type: Literal["compaction"]
    id: str
    status: Literal["completed"]
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
        | CodeInterpreterCallItem
        | WebSearchCallItem
        | McpCallItem
        | McpListToolsItem
        | McpApprovalRequestItem
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
    user: str | None
    # With `enable_response_messages`, once the response has ended.
    input_messages: list[Json] = []
    output_messages: list[Json] = []


_EVENTS_EXAMPLE = (
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":6,'
    '"item_id":"msg_0193_0","output_index":0,"content_index":0,"delta":"Hello","logprobs":[]}\n\ndata: [DONE]\n\n'
)

_EVENT: Json = {
    "type": "object",
    "description": "One Server-Sent Event. Its data is JSON whose type equals the event's; the last one is [DONE].",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
    "additionalProperties": False,
}

RESPONSE_OR_EVENTS: Json = {
    "model": Response,
    "description": "The response object; with `stream` its events as Server-Sent Events.",
    "content": {"text/event-stream": {"schema": _EVENT, "example": _EVENTS_EXAMPLE}},
}

CREATE_BODY: Json = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"$ref": f"#/components/schemas/{CreateResponse.__name__}"},
            "examples": {
                "background": {
                    "summary": "In the background: poll it, or stream it and resume",
                    "value": {"model": "longhaul-demo", "input": "Tell me a story.", "background": True},
                },
                "stream": {
                    "summary": "A stream",
                    "value": {"model": "longhaul-demo", "input": "Hello!", "stream": True},
                },
                "messages": {
                    "summary": "Messages and sampling parameters",
                    "value": {
                        "model": "longhaul-demo",
                        "instructions": "Be brief.",
                        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}],
                        "temperature": 0.2,
                        "max_output_tokens": 64,
                        "metadata": {"job": "nightly"},
                    },
                },
            },
        }
    },
}


def body_of(model: type[BaseModel], *, required: bool = True) -> Json:
    """Returns a request body for a route's documentation; `openapi.py` adds the schema of the model."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": required, "content": {"application/json": {"schema": schema}}}


CREATE_HELP = """Four forms, by `background` and `stream`:

* neither: the answer is the finished response; a client that disconnects cancels it;
* `stream`: the answer is its events as they come; a client that disconnects cancels it;
* `background`: the answer is the `queued` response, at once; it runs without any client;
* both: as `background`, and its events can be read from any sequence number on, any number of times.
"""

COUNT_HELP = """Returns how many tokens the prompt has. A worker of the model counts them before other work."""

COMPACT_HELP = """The model writes a summary, and the answer holds it sealed in one item.

Send that item as the first of `input`."""

READ_HELP = """While it is in progress, the response has its output so far.

With `stream=true` the answer is the events after number `starting_after`, up to the end of the response. The response
must have been created with `stream` and `background`."""


def _query(name: str, description: str, **schema: Any) -> Json:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_INCLUDED = {"type": "string", "enum": list(INCLUDED)}
INCLUDE_PARAMETER = _query(
    "include", "Parts that items have anyhow, or that were included at creation.", type="array", items=_INCLUDED
)
INCLUDE_PARAMETERS: list[Json] = [INCLUDE_PARAMETER]

READ_PARAMETERS: list[Json] = [
    INCLUDE_PARAMETER,
    _query("include_obfuscation", "Events are never obfuscated.", type="boolean", enum=[False]),
    _query("stream", "Read events instead of the object.", type="boolean", default=False),
    _query("starting_after", "With `stream`: events after this sequence number only.", type="integer", minimum=0),
]


CREATE_PARAMETERS: list[Json] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Names this request. Repeated with the same body, it is answered with the same response.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
]

LIST_PARAMETERS: list[Json] = [
    INCLUDE_PARAMETER,
    _query("after", "Items after the one with this id.", type="string", minLength=1),
    _query("limit", "The largest number of items.", type="integer", minimum=1, maximum=100, default=20),
    _query("order", "The newest first, or the oldest.", type="string", enum=["asc", "desc"], default="desc"),
]


def refusals(*statuses: int) -> dict[int | str, Json]:
    """Returns the error answers of a route, for its documentation."""
    return {status: {"model": ErrorBody} for status in statuses}
