"""The body of `POST /v1/chat/completions`: the fields that clients may send, and those that are refused.

`CreateChatCompletion` has every field of openai's CompletionCreateParams (a test compares it with the package), vLLM's
own parameters and Longhaul's. A field of the same name in `/v1/responses` means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from app.chat.messages import Message
from app.chat.tools import Tool, ToolChoice
from app.protocol.requests.base import RequestModel, check_object_type, tag_of
from app.protocol.requests.bodies.create_response import Shared
from app.protocol.requests.bodies.text_config import Effort, Verbosity
from app.protocol.requests.fields import ModelName, SupportedValues, Tokens
from app.protocol.types import Json


class TypedFormat(RequestModel):
    type: Literal["text", "json_object"]


class NamedSchema(RequestModel):
    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ChatJsonSchemaFormat(RequestModel):
    """The text is JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    Annotated[TypedFormat, Tag("<text>")]
    | Annotated[TypedFormat, Tag("<json_object>")]
    | Annotated[ChatJsonSchemaFormat, Tag("<json_schema>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("text", "json_object", "json_schema"))),
]


class ChatStreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: Annotated[
        bool | None, SupportedValues((False,), instead="'include_usage' sends the usage at the end")
    ] = None


_FORMAT = SupportedValues(instead="send 'response_format'")
_TEMPLATE = "the model's chat template has the say; 'chat_template_kwargs' has its arguments"
_TOKENS = "the answer shows no tokens but those of 'logprobs'"
_SEARCH = "send a tool of type 'web_search' to 'POST /v1/responses', if this server has one"

REFUSED: Mapping[str, SupportedValues] = MappingProxyType(
    {
        "audio": SupportedValues(instead="answers are text"),
        "function_call": SupportedValues(instead="send 'tool_choice'"),
        "functions": SupportedValues(instead="send 'tools'"),
        "modalities": SupportedValues((["text"],), "answers are text"),
        "n": SupportedValues((1,), "send the request once for each choice"),
        "prediction": SupportedValues(instead="leave it out: no answer depends on it"),
        "web_search_options": SupportedValues(instead=_SEARCH),
        # vLLM's.
        "add_generation_prompt": SupportedValues((True,), _TEMPLATE),
        "add_special_tokens": SupportedValues((False,), _TEMPLATE),
        "chat_template": SupportedValues(instead=_TEMPLATE),
        "continue_final_message": SupportedValues((False,), _TEMPLATE),
        "documents": SupportedValues(instead="send them as messages"),
        "echo": SupportedValues((False,), _TEMPLATE),
        "guided_choice": _FORMAT,
        "guided_grammar": _FORMAT,
        "guided_json": _FORMAT,
        "guided_regex": _FORMAT,
        "include_reasoning": SupportedValues((True,), "ignore 'reasoning_content' in the answer"),
        "length_penalty": SupportedValues((1, 1.0), "it is for beam search"),
        "prompt_logprobs": SupportedValues(instead=_TOKENS),
        "return_token_ids": SupportedValues((False,), _TOKENS),
        "return_tokens_as_token_ids": SupportedValues((False,), _TOKENS),
        "spaces_between_special_tokens": SupportedValues((True,), "leave it out"),
        "structured_outputs": _FORMAT,
        "truncate_prompt_tokens": SupportedValues(instead="send fewer messages"),
        "use_beam_search": SupportedValues((False,), "the model samples"),
    }
)
"""Fields of OpenAI's API and of vLLM's that are known, and cannot be honoured."""


class CreateChatCompletion(
    Shared,
    json_schema_extra={"examples": [{"model": "longhaul-demo", "messages": [{"role": "user", "content": "Hi!"}]}]},
):
    """The body of `POST /v1/chat/completions`."""

    model: ModelName
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    logprobs: bool | None = None
    stream_options: ChatStreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, sent: Any) -> Any:
        for name in sent:
            if name in REFUSED:
                REFUSED[name].check(sent[name], name)
        return {name: value for name, value in sent.items() if name not in REFUSED}


SAME = frozenset(Shared.model_fields)
"""Fields that go into the response request as they are."""
EMPTY: Json = {"stop": [], "logit_bias": {}}
"""What clients send for a field that they do not set."""
