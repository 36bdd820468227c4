"""The `messages` and the `system` of a Messages request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from app.messages.tools import Tool
from app.protocol.requests.base import ByType, Part, TextOrList
from app.protocol.requests.fields import MAX_PARTS
from app.protocol.requests.validation import refused
from app.protocol.types import Json


class TextBlock(Part):
    type: Literal["text"]
    text: str


_Text = Annotated[TextBlock, ByType()]
Texts = Annotated[list[_Text], Field(max_length=MAX_PARTS, fail_fast=True)]
_NEEDED = {
    "base64": ("media_type", "data"),
    "content": ("content",),
    "file": ("file_id",),
    "text": ("data",),
    "url": ("url",),
}


class DataSource(Part):
    """The source of an image or a document: a URL, a file, or its bytes."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: TextOrList[str, Texts] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if missing := next((name for name in _NEEDED[self.type] if getattr(self, name) is None), None):
            raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", missing)
        return self


class ImageBlock(Part):
    """An image, for models that take images."""

    type: Literal["image"]
    source: Annotated[DataSource, ByType(tags={DataSource: ("base64", "file", "url")})]


class DocumentBlock(Part):
    """A document whose text the model reads."""

    type: Literal["document"]
    source: Annotated[DataSource, ByType(tags={DataSource: tuple(_NEEDED)})]
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Part):
    """A result of the client's own search. The model reads it as text."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Texts


class ThinkingBlock(Part):
    """What the model thought; its signature is the seal of the text, which need not be there."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Part):
    type: Literal["redacted_thinking"]
    data: Annotated[str, Field(min_length=1)]


class ToolUseBlock(Part):
    """A call of a tool that the client runs."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Json


class ToolReferenceBlock(Part):
    """A tool with `defer_loading`, which the model may call from here on."""

    type: Literal["tool_reference"]
    tool_name: str


_Read = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock
_Returned = Annotated[_Read | ToolReferenceBlock, ByType()]


class ToolResultBlock(Part):
    """The result of a tool of the client."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextOrList[str, Annotated[list[_Returned], Field(max_length=MAX_PARTS, fail_fast=True)]] | None = None
    is_error: bool | None = None


class ServerToolUseBlock(Part):
    """A call that the server has run."""

    type: Literal["server_tool_use", "mcp_tool_use"]
    id: str
    name: str
    input: Json
    server_name: str | None = None


class ServerResultBlock(Part):
    """The result of a call that the server has run."""

    type: str
    tool_use_id: str
    content: Any = None
    is_error: bool | None = None


class CompactionBlock(Part):
    """A summary of what was before it; null: it failed."""

    type: Literal["compaction"]
    content: str | None = None


SERVER_RESULTS = (
    "code_execution_tool_result",
    "mcp_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
)
_THERE = "it belongs to tools that this server does not have; leave it out"
REFUSED_BLOCKS = {
    "advisor_tool_result": _THERE,
    "bash_code_execution_tool_result": _THERE,
    "container_upload": "send its text as a block of type 'document'",
    "fallback": _THERE,
    "mcp_tool_listing": _THERE,
    "text_editor_code_execution_tool_result": _THERE,
    "tool_search_tool_result": _THERE,
}
"""Types of blocks that are known, and what to do instead."""


class ChangedTool(Part):
    """A tool by its name, or its definition, as `tools` has it."""

    type: Literal["tool_reference", "tool_definition"]
    name: str | None = None
    definition: Tool | None = None


class ToolAdditionBlock(Part):
    """A tool that the model may call from here on."""

    type: Literal["tool_addition"]
    tool: ChangedTool


class ToolRemovalBlock(Part):
    """A hint: the prompt still has the tool, so that it stays cached, and the client refuses its calls."""

    type: Literal["tool_removal"]


SystemBlock = Annotated[TextBlock | ToolAdditionBlock | ToolRemovalBlock, ByType()]


class SystemTurn(Part):
    role: Literal["system"]
    content: TextOrList[str, Annotated[list[SystemBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


UserBlock = Annotated[_Read | ToolResultBlock, ByType(REFUSED_BLOCKS)]
AssistantBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ServerToolUseBlock
    | ServerResultBlock
    | CompactionBlock,
    ByType(REFUSED_BLOCKS, tags={ServerResultBlock: SERVER_RESULTS}),
]


class UserTurn(Part):
    role: Literal["user"]
    content: TextOrList[str, Annotated[list[UserBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


class AssistantTurn(Part):
    """What the model answered."""

    role: Literal["assistant"]
    content: TextOrList[str, Annotated[list[AssistantBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


Message = Annotated[SystemTurn | UserTurn | AssistantTurn, ByType(key="role")]
