"""The body of `POST /v1/chat/completions`: the fields that clients may send, and those that are refused.

`CreateChatCompletion` has every field of openai's CompletionCreateParams (a test compares it with the package), vLLM's
own parameters and Longhaul's. A field of the same name in `/v1/responses` means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, model_validator

from app.chat.messages import Message
from app.chat.tools import Tool, ToolChoice
from app.protocol.requests.base import RequestModel
from app.protocol.requests.bodies.create_response import Shared
from app.protocol.requests.bodies.text_config import Effort, Summary, Verbosity
from app.protocol.requests.fields import ModelName, SupportedValues, Tokens
from app.protocol.types import Json


class NamedSchema(RequestModel):
    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """The text is text, JSON (`json_object`), or JSON that matches a schema (`json_schema`)."""

    type: str
    json_schema: NamedSchema | None = None


class ReasoningOptions(RequestModel):
    """OpenRouter's form of `reasoning_effort`."""

    effort: Effort | None = None
    summary: Summary | None = None
    """A hint: `reasoning_content` has all of the reasoning."""


class ChatStreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: Annotated[
        bool | None, SupportedValues((False,), instead="'include_usage' sends the usage at the end")
    ] = None


_ANSWERS = "answers are text"
_FORMAT = SupportedValues(instead="send 'response_format'")
_TEMPLATE = "the model's chat template has the say; 'chat_template_kwargs' has its arguments"
_THINKING = SupportedValues(instead="send 'reasoning_effort', or the template's argument in 'chat_template_kwargs'")
_TOKENS = "the answer shows no tokens but those of 'logprobs'"
_OPERATOR = SupportedValues(instead="the operator sets it when the model is loaded")

REFUSED: Mapping[str, SupportedValues] = MappingProxyType(
    {
        "audio": SupportedValues(instead=_ANSWERS),
        "function_call": SupportedValues(instead="send 'tool_choice'"),
        "functions": SupportedValues(([],), "send 'tools'"),
        "modalities": SupportedValues((["text"],), _ANSWERS),
        "n": SupportedValues((1,), "send the request once for each choice"),
        "prediction": SupportedValues(instead="leave it out: no answer depends on it"),
        "web_search_options": SupportedValues(
            instead="send a tool of type 'web_search' to 'POST /v1/responses', if this server has one"
        ),
        # vLLM's.
        "add_generation_prompt": SupportedValues((True,), _TEMPLATE),
        "add_special_tokens": SupportedValues((False,), _TEMPLATE),
        "best_of": SupportedValues((1,), "send the request once for each choice"),
        "chat_template": SupportedValues(instead=_TEMPLATE),
        "continue_final_message": SupportedValues((False,), _TEMPLATE),
        "documents": SupportedValues(([],), "send them as messages"),
        "echo": SupportedValues((False,), _TEMPLATE),
        **dict.fromkeys(
            ("guided_choice", "guided_grammar", "guided_json", "guided_regex", "structured_outputs"), _FORMAT
        ),
        "length_penalty": SupportedValues((1, 1.0), "it is for beam search"),
        "prompt_logprobs": SupportedValues(instead=_TOKENS),
        "request_id": SupportedValues(instead="send the header 'X-Request-ID'"),
        "return_token_ids": SupportedValues((False,), _TOKENS),
        "return_tokens_as_token_ids": SupportedValues((False,), _TOKENS),
        "spaces_between_special_tokens": SupportedValues((True,), "leave it out"),
        "truncate_prompt_tokens": SupportedValues(instead="send fewer messages"),
        "use_beam_search": SupportedValues((False,), "the model samples"),
        # Of other servers: user interfaces offer them for every model.
        "enable_thinking": _THINKING,
        "format": _FORMAT,
        "keep_alive": _OPERATOR,
        "num_ctx": _OPERATOR,
        "num_predict": SupportedValues(instead="send 'max_completion_tokens'"),
        "repeat_penalty": SupportedValues(instead="send 'repetition_penalty'"),
        "think": _THINKING,
        "thinking": _THINKING,
    }
)
"""Fields of OpenAI's API and of others that are known, and cannot be honoured."""


class CreateChatCompletion(
    Shared,
    example={"model": "longhaul-demo", "messages": [{"role": "user", "content": "Hi!"}]},
):
    """The body of `POST /v1/chat/completions`."""

    model: ModelName
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    verbosity: Verbosity | None = None
    max_completion_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    logprobs: bool | None = None
    stream_options: ChatStreamOptions | None = None

    @property
    def effort(self) -> str | None:
        return self.reasoning_effort or (None if self.reasoning is None else self.reasoning.effort)

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
"""The values that clients send for a field that they do not set."""
