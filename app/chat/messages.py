"""The `messages` of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from app.protocol.requests.base import Part, TextOrList, check_object_type, tag_of
from app.protocol.requests.fields import OpaqueObject, SupportedValues, Text
from app.protocol.types import Json


class Cacheable(Part):
    """What clients mark for other servers' caches. Hints: the engine's prefix cache needs no marks."""

    cache_control: OpaqueObject | None = None
    prompt_cache_breakpoint: OpaqueObject | None = None


class TextPart(Cacheable):
    type: Literal["text"]
    text: str


class ImageUrl(Part):
    url: str
    detail: str | None = None


class ImagePart(Cacheable):
    """An image, for models that take images."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FileContent(Part):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class FilePart(Cacheable):
    """A file whose text the model reads."""

    type: Literal["file"]
    file: FileContent


class RefusalPart(Part):
    type: Literal["refusal"]
    refusal: str


_NO_PARTS = {
    "input_audio": "send a transcript as a part of type 'text'",
    "video_url": "send single pictures as parts of type 'image_url'",
}
_NO_FILES = {**_NO_PARTS, "file": "send its text as a part of type 'text', or the file in a message of the role 'user'"}
_TextPart = Annotated[TextPart, BeforeValidator(check_object_type(("text",), _NO_FILES))]
_AnswerPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("text", "refusal"), _NO_FILES)),
]
_UserPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[ImagePart, Tag("<image_url>")] | Annotated[FilePart, Tag("<file>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("text", "image_url", "file"), _NO_PARTS)),
]
UserContent = TextOrList[str, Annotated[list[_UserPart], Field(fail_fast=True)]]


class _Message(Cacheable):
    name: Text | None = None
    """Who speaks. A hint: no model is shown it."""
    type: Literal["text", "message"] | None = None
    """What evaluation tools write on each message."""


class SystemMessage(_Message):
    role: Literal["system", "developer"]
    content: TextOrList[str, Annotated[list[_TextPart], Field(fail_fast=True)]]


class UserMessage(_Message):
    role: Literal["user"]
    content: UserContent


class CalledFunction(Part):
    name: str
    arguments: str
    parsed_arguments: Annotated[Json | None, Field(exclude=True)] = None
    """What openai's `parse` made of the arguments: its messages come back with it. A hint, as `parsed`."""


class ChatFunctionToolCall(Part):
    id: str
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None
    """Of a chat chunk: clients that put a call together from several send it back."""


class CalledCustom(Part):
    name: str
    input: str


class ChatCustomToolCall(Part):
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
    parsed: Json | None = None
    """What openai's `parse` made of the content."""
    provider_specific_fields: OpaqueObject | None = None
    """Of LiteLLM: what other servers answered. It is kept nowhere."""
    annotations: Annotated[list[Json] | None, SupportedValues(([],))] = None
    images: Annotated[list[Json] | None, SupportedValues(([],))] = None
    thinking_blocks: Annotated[list[Json] | None, SupportedValues(([],), instead="send 'reasoning_content'")] = None
    reasoning_details: Annotated[list[Json] | None, SupportedValues(([],), instead="send 'reasoning_content'")] = None
    audio: Annotated[Json | None, SupportedValues(instead="send its transcript as 'content'")] = None
    function_call: Annotated[Json | None, SupportedValues(instead="send 'tool_calls'")] = None


class ToolMessage(_Message):
    role: Literal["tool"]
    content: UserContent
    tool_call_id: str


_ROLES = ("assistant", "developer", "system", "tool", "user")
_NO_ROLES = {"function": "send what a tool returned as a message of the role 'tool'"}
Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[SystemMessage, Tag("<developer>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    Discriminator(lambda value: f"<{value['role']}>"),
    BeforeValidator(check_object_type(_ROLES, _NO_ROLES, "role")),
]
