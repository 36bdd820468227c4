"""The `messages` of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.protocol.requests.base import ByType, Part, TextOrList


class TextPart(Part):
    type: Literal["text"]
    text: str


class ImageUrl(Part):
    url: str
    detail: str | None = None


class ImagePart(Part):
    """An image, for models that take images."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FileContent(Part):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class FilePart(Part):
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
_TextPart = Annotated[TextPart, ByType(_NO_FILES)]
_AnswerPart = Annotated[TextPart | RefusalPart, ByType(_NO_FILES)]
_UserPart = Annotated[TextPart | ImagePart | FilePart, ByType(_NO_PARTS)]
UserContent = TextOrList[str, Annotated[list[_UserPart], Field(fail_fast=True)]]


class SystemMessage(Part):
    role: Literal["system", "developer"]
    content: TextOrList[str, Annotated[list[_TextPart], Field(fail_fast=True)]]


class UserMessage(Part):
    role: Literal["user"]
    content: UserContent


class CalledFunction(Part):
    name: str
    arguments: str


class ChatFunctionToolCall(Part):
    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledCustom(Part):
    name: str
    input: str


class ChatCustomToolCall(Part):
    id: str
    type: Literal["custom"]
    custom: CalledCustom


ToolCall = Annotated[ChatFunctionToolCall | ChatCustomToolCall, ByType()]


class AssistantMessage(Part):
    """What the model answered. `reasoning` is vLLM's newer name of `reasoning_content`."""

    role: Literal["assistant"]
    content: TextOrList[str, Annotated[list[_AnswerPart], Field(fail_fast=True)]] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None


class ToolMessage(Part):
    role: Literal["tool"]
    content: UserContent
    tool_call_id: str


_NO_ROLES = {"function": "send what a tool returned as a message of the role 'tool'"}
Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, ByType(_NO_ROLES, "role")]
