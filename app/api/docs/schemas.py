"""The answers as `/docs` shows them. What answers repeat of a request is described by the request's own models.

No answer passes through these shapes: a page of 100 files takes 0.13 ms to make as dicts, and 3.6 ms through models
(CPython 3.11, two cores of a VM). Tests compare the shapes with real answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model

from app.protocol.errors import ErrorType, InvalidRequest
from app.protocol.hosted_kinds import CODE_INTERPRETER, MCP, WEB_SEARCH, HostedToolKind
from app.protocol.item_types import APPROVAL_REQUEST, COMPACTION, ITEM_TYPES, MCP_LIST_TOOLS
from app.protocol.local_kinds import APPLY_PATCH, LOCAL_SHELL, SHELL
from app.protocol.requests.base import ItemStatus
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.files import FilePurpose
from app.protocol.requests.bodies.request import AS_SENT, SAMPLING_DEFAULTS
from app.protocol.requests.bodies.text_config import Effort, Reasoning, TextConfig
from app.protocol.requests.bodies.webhooks import EventType
from app.protocol.requests.fields import Metadata, OneOf
from app.protocol.requests.items.content import ReasoningText, Refusal, SummaryText
from app.protocol.requests.items.hosted import Action, CodeOutput, ListedTool
from app.protocol.requests.items.local import LocalShellAction, Operation, ShellAction
from app.protocol.requests.tools.any_tool import Execution, Tool
from app.protocol.requests.tools.choice import ToolChoice
from app.protocol.status import BATCH_TIMES, BatchStatus, Status
from app.protocol.types import Json


def shape(name: str, about: str | None = None, /, **fields: Any) -> type[BaseModel]:
    """Returns the model of an object that has these fields and no others. A value is a type, or `may_lack`."""
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=about, **fields)


def may_lack(kind: Any, about: str | None = None) -> Any:
    """A field that is left out of some answers. The factory, which nothing calls, makes it optional."""
    return kind, Field(default_factory=dict, description=about)


def array(*kinds: Any) -> Any:
    """The type of an array of shapes."""
    return list[Union[kinds]]  # type: ignore[valid-type]  # noqa: UP007


def page_of(entry: type[BaseModel]) -> type[BaseModel]:
    """Returns the shape of a page of a list."""
    ends = dict.fromkeys(("first_id", "last_id"), Annotated[str, Field(description="Empty if the page is.")])
    return shape(f"{entry.__name__}List", object=Literal["list"], data=array(entry), **ends, has_more=bool)


_EXAMPLE = InvalidRequest("'prompt' is not supported yet.", "prompt", "unsupported_parameter").error.body()
ErrorBody = create_model(
    "ErrorBody",
    __doc__="Every error, whatever its status.",
    __config__=ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]}),
    error=shape("Error", message=str, type=ErrorType, **dict.fromkeys(("param", "code"), str | None)),
)

# -- health and models -----------------------------------------------------------------------------------------

Live = shape("Live", status=Literal["live"])
Ready = shape(
    "Ready",
    "A caller without an API key, where one is asked for, gets the status alone.",
    status=Literal["ready", "degraded", "not_ready", "stopping"],
    missing=may_lack(list[Literal["postgres", "schema", "redis", "workers"]]),
    models=may_lack(shape("ModelsReady", ready=list[str], without_worker=list[str])),
)
Model = shape(
    "Model",
    "A context of null tokens is not known yet: no worker of the model has registered.",
    **dict.fromkeys(("id", "owned_by"), str),
    object=Literal["model"],
    created=int,
    parent=Annotated[str | None, Field(description="For a LoRA adapter: its base model.")],
    **dict.fromkeys(("max_model_len", "context_length"), int | None),
    architecture=shape(
        "Architecture",
        input_modalities=list[Literal["text", "image"]],
        output_modalities=list[Literal["text"]],
    ),
    reasoning_efforts=list[Effort],
    refusals=Annotated[dict[str, str], Field(description="What the model cannot be shown, and why.")],
    **dict.fromkeys(("supported_parameters", "tool_types"), list[str]),
)
ModelList = shape(
    "ModelList",
    object=Literal["list"],
    data=array(Model),
    models=may_lack(list[Json], "If the request has `client_version`: the models in Codex's own form."),
)

# -- webhooks --------------------------------------------------------------------------------------------------

_ENDPOINT: Json = {
    **dict.fromkeys(("id", "name", "url", "signing_secret_hint"), str),
    "object": Literal["webhook_endpoint"],
    "event_types": list[EventType],
    **dict.fromkeys(("created_at", "updated_at"), int),
    "disabled": bool,
    "disabled_reason": Literal["requested", "gone", "failing"] | None,
    **dict.fromkeys(("disabled_at", "failing_since"), int | None),
}
WebhookEndpoint = shape("WebhookEndpoint", "`disabled`, its reason, and `failing_since` are extensions.", **_ENDPOINT)
NewWebhookEndpoint = shape("NewWebhookEndpoint", **_ENDPOINT, signing_secret=str)
WebhookEndpointDeleted = shape(
    "WebhookEndpointDeleted", id=str, object=Literal["webhook_endpoint.deleted"], deleted=bool
)
WebhookTest = shape(
    "WebhookTest",
    object=Literal["webhook_endpoint.test"],
    **dict.fromkeys(("event_type", "webhook_endpoint_id"), str),
    status_code=int,
    success=Literal[True],
)
WebhookEventTypes = shape("WebhookEventTypes", object=Literal["list"], data=list[EventType])
_ABOUT = shape("EventData", id=str)
Event = shape("Event", id=str, object=Literal["event"], created_at=int, type=EventType, data=_ABOUT)
WebhookDelivery = shape(
    "WebhookDelivery",
    "Its id is that of its event.",
    id=str,
    object=Literal["webhook_endpoint.delivery"],
    event_type=EventType,
    data=_ABOUT,
    status=Literal["pending", "delivered", "failed"],
    created_at=int,
    **dict.fromkeys(("next_attempt_at", "ended_at"), int | None),
    attempts=array(shape("Attempt", at=int, status_code=int | None, error=str | None, body=str)),
)
WebhookEndpointList, WebhookDeliveryList, EventList = map(page_of, (WebhookEndpoint, WebhookDelivery, Event))

# -- batches ---------------------------------------------------------------------------------------------------

BatchError = shape(
    "BatchError",
    "Of a batch that failed: a bad line. Of one that has run: what `count` lines ended with; `line` is the first.",
    code=str,
    message=str,
    param=str | None,
    line=int | None,
    count=may_lack(int),
)
Batch = shape(
    "Batch",
    "`retry_of` is an extension: the batch whose lines without an answer these are.",
    **dict.fromkeys(("id", "endpoint", "input_file_id", "completion_window"), str),
    object=Literal["batch"],
    status=Literal[tuple(each.value for each in BatchStatus)],
    errors=shape("BatchErrors", object=Literal["list"], data=array(BatchError)) | None,
    **dict.fromkeys(("model", "output_file_id", "error_file_id", "retry_of"), str | None),
    **dict.fromkeys(("created_at", "expires_at"), int),
    **dict.fromkeys((f"{name}_at" for name in BATCH_TIMES), int | None),
    request_counts=shape("BatchRequestCounts", **dict.fromkeys(("total", "completed", "failed"), int)),
    usage=shape(
        "BatchUsage",
        **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), int),
        input_tokens_details=shape("BatchInputTokens", cached_tokens=int),
        output_tokens_details=shape("BatchOutputTokens", reasoning_tokens=int),
    ),
    metadata=Metadata | None,
)
BatchList = page_of(Batch)

# -- files -----------------------------------------------------------------------------------------------------

File = shape(
    "File",
    id=str,
    object=Literal["file"],
    bytes=int,
    created_at=int,
    expires_at=int | None,
    filename=str,
    purpose=FilePurpose,
    status=Literal["processed"],
    status_details=None,
)
FileList = page_of(File)
FileDeleted = shape("FileDeleted", id=str, object=Literal["file"], deleted=Literal[True])

# -- items -----------------------------------------------------------------------------------------------------


def _item(kind: str, /, **fields: Any) -> type[BaseModel]:
    """An item of `output`."""
    return shape(f"Response{kind.title().replace('_', '')}", type=Literal[kind], id=str, **fields)


def _hosted(kind: HostedToolKind, **fields: Any) -> type[BaseModel]:
    """A call of a hosted tool: it also shows that it runs, or that it failed."""
    own = () if kind.running_status is None else (kind.running_status,)
    return _item(kind.call_type, **fields, status=Literal[(*get_args(ItemStatus), "failed", *own)])


_TEXT = {"text": str, "annotations": list[Json], "logprobs": list[Json]}
_CALLED = {"call_id": str, "name": str, "namespace": may_lack(str, "Only of a tool in a namespace.")}
_ENVIRONMENT = shape("ShellEnvironment", type=Literal["local"])
_OF_SERVER = {"server_label": str, "name": str, "arguments": str}

_OUTPUT_ITEMS = (
    _item(
        "message",
        role=Literal["assistant"],
        status=ItemStatus,
        content=array(shape("OutputTextPart", type=Literal["output_text"], **_TEXT), Refusal),
        phase=may_lack(Literal["commentary", "final_answer"], "Of models that tell a preamble from an answer."),
    ),
    _item(
        "reasoning",
        status=ItemStatus,
        summary=list[SummaryText],
        content=list[ReasoningText],
        encrypted_content=may_lack(str, "If `include` asks for it, once the item is done."),
    ),
    _item("function_call", **_CALLED, arguments=str, status=ItemStatus),
    _item("custom_tool_call", **_CALLED, input=str, status=ItemStatus),
    _item("tool_search_call", call_id=str | None, execution=Execution, arguments=Json, status=ItemStatus),
    _item("tool_search_output", call_id=None, execution=Literal["server"], tools=list[Json], status=ItemStatus),
    _item(SHELL.call_type, call_id=str, action=ShellAction, environment=_ENVIRONMENT, status=ItemStatus),
    _item(APPLY_PATCH.call_type, call_id=str, operation=Operation, status=Literal["in_progress", "completed"]),
    _item(LOCAL_SHELL.call_type, call_id=str, action=LocalShellAction, status=ItemStatus),
    _hosted(CODE_INTERPRETER, code=str, container_id=str, outputs=list[CodeOutput] | None),
    _hosted(WEB_SEARCH, action=Action),
    _hosted(MCP, **_OF_SERVER, output=str | None, error=Json | None, approval_request_id=str | None),
    _item(MCP_LIST_TOOLS, server_label=str, tools=list[ListedTool], error=str | None),
    _item(APPROVAL_REQUEST, **_OF_SERVER),
    _item(COMPACTION, status=ItemStatus, encrypted_content=str),
)


class Item(BaseModel, extra="allow"):
    """Any item, with the fields of its type."""

    id: str
    type: Annotated[str, OneOf(ITEM_TYPES)]


ItemList = page_of(Item)

# -- conversations ---------------------------------------------------------------------------------------------

Conversation = shape("Conversation", id=str, object=Literal["conversation"], created_at=int, metadata=Metadata)
ConversationDeleted = shape(
    "ConversationDeleted", id=str, object=Literal["conversation.deleted"], deleted=Literal[True]
)

# -- responses -------------------------------------------------------------------------------------------------

_TURNS = may_lack(list[int], "One number for each turn, if there was more than one.")
Usage = shape(
    "Usage",
    **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), int),
    input_tokens_details=shape(
        "InputTokensDetails",
        **dict.fromkeys(("cached_tokens", "cache_write_tokens"), int),
        **dict.fromkeys(("input_tokens_per_turn", "cached_tokens_per_turn"), _TURNS),
    ),
    output_tokens_details=shape(
        "OutputTokensDetails",
        reasoning_tokens=int,
        tool_output_tokens=may_lack(int, "Of the results of hosted tools, which are input of the next turn."),
        **dict.fromkeys(("output_tokens_per_turn", "tool_output_tokens_per_turn"), _TURNS),
    ),
)
InputTokens = shape("InputTokens", object=Literal["response.input_tokens"], input_tokens=int)
Compaction = shape(
    "CompactedResponse",
    id=str,
    object=Literal["response.compaction"],
    created_at=int,
    output=array(_OUTPUT_ITEMS[-1]),
    usage=Usage,
)
Deleted = shape("Deleted", id=str, object=Literal["response"], deleted=Literal[True])

_SENT = CreateResponse.model_fields
Response = shape(
    "Response",
    "A response in any state. Times are epoch seconds.",
    **dict.fromkeys(("id", "model"), str),
    object=Literal["response"],
    created_at=int,
    completed_at=int | None,
    status=Status,
    error=shape(
        "ResponseError",
        code=str,
        message=str,
        reason=may_lack(str, "A code of ours, where `code` is the nearest one of OpenAI's."),
    )
    | None,
    incomplete_details=shape(
        "IncompleteDetails", reason=Literal["max_output_tokens", "malformed_call", "unfinished_reasoning"]
    )
    | None,
    output=array(*_OUTPUT_ITEMS),
    usage=Usage | None,
    **{name: _SENT[name].annotation for name in AS_SENT},
    **dict.fromkeys(SAMPLING_DEFAULTS, float),
    **dict.fromkeys(("store", "background", "parallel_tool_calls"), bool),
    metadata=Metadata,
    service_tier=Literal["default", "flex", "priority"],
    text=TextConfig,
    tools=list[Tool],
    tool_choice=ToolChoice,
    truncation=Literal["auto", "disabled"],
    top_logprobs=int,
    reasoning=Reasoning | None,
    prompt_cache_options=shape(
        "AppliedPromptCacheOptions", mode=Literal["implicit", "explicit"], ttl=Literal["30m", "12h"]
    )
    | None,
    image=shape("AppliedImageOptions", context_compression=Literal["enabled", "disabled"]) | None,
    conversation=shape("ResponseConversation", id=str) | None,
    omitted_tools=may_lack(list[str], "Types of tools of the request that this server leaves out, if there were any."),
    **dict.fromkeys(
        ("input_messages", "output_messages"), may_lack(list[Json], "With `enable_response_messages`, at the end.")
    ),
)

# -- chat completions ------------------------------------------------------------------------------------------

_FunctionCall = shape(
    "CompletionFunctionCall",
    id=str,
    type=Literal["function"],
    function=shape("CompletionCalledFunction", name=str, arguments=str),
)
_CustomCall = shape(
    "CompletionCustomCall", id=str, type=Literal["custom"], custom=shape("CompletionCalledCustom", name=str, input=str)
)
_ChatMessage = shape(
    "CompletionMessage",
    role=Literal["assistant"],
    **dict.fromkeys(("content", "refusal"), str | None),
    reasoning_content=may_lack(str, "What the model reasoned, if it did."),
    tool_calls=may_lack(array(_FunctionCall, _CustomCall)),
)
ChatCompletion = shape(
    "ChatCompletion",
    "An answer. `id` is that of the response with another prefix.",
    **dict.fromkeys(("id", "model"), str),
    object=Literal["chat.completion"],
    created=int,
    service_tier=Literal["default", "flex", "priority"],
    system_fingerprint=None,
    omitted_tools=may_lack(list[str], "Types of tools of the request that this server leaves out, if there were any."),
    choices=array(
        shape(
            "CompletionChoice",
            index=int,
            message=_ChatMessage,
            logprobs=shape("CompletionLogprobs", content=list[Json], refusal=None) | None,
            finish_reason=Literal["stop", "length", "tool_calls", "content_filter"],
        )
    ),
    usage=shape(
        "CompletionUsage",
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), int),
        prompt_tokens_details=shape("PromptTokensDetails", cached_tokens=int),
        completion_tokens_details=shape("CompletionTokensDetails", reasoning_tokens=int),
    ),
)

# -- messages --------------------------------------------------------------------------------------------------

_MessageBlock = shape(
    "MessageBlock",
    "A block of a message. Its `type` says which of the other fields it has.",
    type=str,
    **dict.fromkeys(("text", "thinking", "signature", "id", "name", "server_name", "tool_use_id"), may_lack(str)),
    input=may_lack(Json),
    content=may_lack(Any, "What a tool of the server returned."),
    citations=may_lack(list[Json] | None),
    is_error=may_lack(bool),
)
Message = shape(
    "Message",
    "An answer. `id` is that of the response with another prefix.",
    **dict.fromkeys(("id", "model"), str),
    type=Literal["message"],
    role=Literal["assistant"],
    content=array(_MessageBlock),
    stop_reason=Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
    ],
    stop_sequence=str | None,
    usage=shape(
        "MessageUsage",
        **dict.fromkeys(
            ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), int
        ),
        output_tokens_details=shape("MessageOutputTokens", thinking_tokens=int),
        server_tool_use=shape("MessageServerTools", **dict.fromkeys(("web_search_requests", "web_fetch_requests"), int))
        | None,
    ),
    omitted_tools=may_lack(list[str], "Types of tools of the request that this server leaves out, if there were any."),
)
MessageTokens = shape("MessageTokens", input_tokens=int)
MessageError = shape(
    "MessageErrorBody",
    "An error in the form of Anthropic's API.",
    type=Literal["error"],
    error=shape("MessageError", **dict.fromkeys(("type", "message"), str)),
    request_id=str | None,
)
