"""The `messages` of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from app.protocol.requests.base import RequestModel, TextOrList, check_object_type, tag_of, unsupported_value
from app.protocol.requests.fields import SupportedValues, Text
from app.protocol.requests.validation import refused, wrong_kind
from app.protocol.types import Json


class TextPart(RequestModel):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Json | None = None


class ImageUrl(RequestModel):
    url: str
    detail: str | None = None


class ImagePart(RequestModel):
    """An image, for models that take images."""

    type: Literal["image_url"]
    image_url: ImageUrl
    prompt_cache_breakpoint: Json | None = None


class RefusalPart(RequestModel):
    type: Literal["refusal"]
    refusal: str


_NO_PARTS = {
    "file": "send its text as a part of type 'text'",
    "input_audio": "send a transcript as a part of type 'text'",
    "video_url": "send single pictures as parts of type 'image_url'",
}
_TextPart = Annotated[TextPart, BeforeValidator(check_object_type(("text",), _NO_PARTS))]
_AnswerPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("text", "refusal"), _NO_PARTS)),
]
_UserPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[ImagePart, Tag("<image_url>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("text", "image_url"), _NO_PARTS)),
]
UserContent = TextOrList[str, Annotated[list[_UserPart], Field(fail_fast=True)]]


class _Message(RequestModel):
    name: Text | None = None
    """Who speaks. The model is not shown it."""


class SystemMessage(_Message):
    role: Literal["system", "developer"]
    content: TextOrList[str, Annotated[list[_TextPart], Field(fail_fast=True)]]


class UserMessage(_Message):
    role: Literal["user"]
    content: UserContent


class CalledFunction(RequestModel):
    name: str
    arguments: str


class ChatFunctionToolCall(RequestModel):
    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None
    """Of a chunk: clients that put a call together from chunks send it back."""


class CalledCustom(RequestModel):
    name: str
    input: str


class ChatCustomToolCall(RequestModel):
    id: str
    type: Literal["custom"]
    custom: CalledCustom
    index: int | None = None


ToolCall = Annotated[
    Annotated[ChatFunctionToolCall, Tag("<function>")] | Annotated[ChatCustomToolCall, Tag("<custom>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("function", "custom"))),
]


class AssistantMessage(_Message):
    """What the model answered. `reasoning` is vLLM's newer name of `reasoning_content`."""

    role: Literal["assistant"]
    content: TextOrList[str, Annotated[list[_AnswerPart], Field(fail_fast=True)]] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    annotations: Annotated[list[Json] | None, SupportedValues(([],))] = None
    audio: Annotated[Json | None, SupportedValues(instead="send its transcript as 'content'")] = None
    function_call: Annotated[Json | None, SupportedValues(instead="send 'tool_calls'")] = None


class ToolMessage(_Message):
    """What a tool returned: text, or parts."""

    role: Literal["tool"]
    content: UserContent
    tool_call_id: str


_ROLES = ("system", "developer", "user", "assistant", "tool")


def _check_role(value: Any) -> Any:
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    role = value.get("role")
    if "role" not in value:
        raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", "role")
    if not isinstance(role, str):
        raise refused("Invalid type for '{path}': expected a string.", "invalid_type", "role")
    if role == "function":
        advice = "send what a tool returned as a message of the role 'tool'"
        raise refused(f"'{{path}}': 'function' is not supported; {advice}.", "unsupported_parameter", "role")
    if role not in _ROLES:
        raise unsupported_value(role, _ROLES, "role")
    return value


def _role_tag(value: Any) -> str:
    role = value["role"]
    return "<system>" if role == "developer" else f"<{role}>"


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    Discriminator(_role_tag),
    BeforeValidator(_check_role),
]
