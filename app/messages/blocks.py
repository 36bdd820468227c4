"""The `messages` and the `system` of a Messages request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from app.messages.tools import Tool
from app.protocol.requests.base import Part, TextOrList, check_object_type, tag_of
from app.protocol.requests.fields import MAX_PARTS
from app.protocol.requests.validation import refused
from app.protocol.types import Json


class TextBlock(Part):
    type: Literal["text"]
    text: str


_Text = Annotated[TextBlock, BeforeValidator(check_object_type(("text",)))]
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
    source: Annotated[DataSource, BeforeValidator(check_object_type(("base64", "file", "url")))]


class DocumentBlock(Part):
    """A document whose text the model reads."""

    type: Literal["document"]
    source: Annotated[DataSource, BeforeValidator(check_object_type(_NEEDED))]
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


_Referable = (
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[SearchResultBlock, Tag("<search_result>")]
)
_READ = ("text", "image", "document", "search_result")


class ToolResultBlock(Part):
    """The result of a tool of the client."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        TextOrList[
            str,
            Annotated[
                list[
                    Annotated[
                        _Referable | Annotated[ToolReferenceBlock, Tag("<tool_reference>")],
                        Discriminator(tag_of),
                        BeforeValidator(check_object_type((*_READ, "tool_reference"))),
                    ]
                ],
                Field(max_length=MAX_PARTS, fail_fast=True),
            ],
        ]
        | None
    ) = None
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
_SAID = ("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "compaction")


def _said_tag(value: Any) -> str:
    kind = value["type"] if isinstance(value, dict) else value.type
    return "<server_result>" if kind in SERVER_RESULTS else f"<{kind}>"


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


SystemBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ToolAdditionBlock, Tag("<tool_addition>")]
    | Annotated[ToolRemovalBlock, Tag("<tool_removal>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("text", "tool_addition", "tool_removal"))),
]


class SystemTurn(Part):
    role: Literal["system"]
    content: TextOrList[str, Annotated[list[SystemBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


UserBlock = Annotated[
    _Referable | Annotated[ToolResultBlock, Tag("<tool_result>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type((*_READ, "tool_result"), REFUSED_BLOCKS)),
]
AssistantBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ServerToolUseBlock, Tag("<server_tool_use>")]
    | Annotated[ServerToolUseBlock, Tag("<mcp_tool_use>")]
    | Annotated[ServerResultBlock, Tag("<server_result>")]
    | Annotated[CompactionBlock, Tag("<compaction>")],
    Discriminator(_said_tag),
    BeforeValidator(check_object_type((*_SAID, *SERVER_RESULTS), REFUSED_BLOCKS)),
]


class UserTurn(Part):
    role: Literal["user"]
    content: TextOrList[str, Annotated[list[UserBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


class AssistantTurn(Part):
    """What the model answered."""

    role: Literal["assistant"]
    content: TextOrList[str, Annotated[list[AssistantBlock], Field(max_length=MAX_PARTS, fail_fast=True)]]


Message = Annotated[
    Annotated[SystemTurn, Tag("<system>")]
    | Annotated[UserTurn, Tag("<user>")]
    | Annotated[AssistantTurn, Tag("<assistant>")],
    Discriminator(lambda value: f"<{value['role'] if isinstance(value, dict) else value.role}>"),
    BeforeValidator(check_object_type(("user", "assistant", "system"), key="role")),
]
