"""The items of `input`, as clients send them and as we store them.

To add an item type: a model with a `stored` method, its row in `_ITEM_TAGS` instead of among `NOT_YET`,
and its member in `Item`. Parts of content the same way.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from app.protocol.locations import shortened
from app.protocol.validation import refused, wrong_kind

Json = dict[str, Any]

NOT_YET = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "reasoning",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Item types of openai's ResponseInputItemParam that are refused; a test holds the list against the package."""

PARTS_NOT_YET = frozenset({"input_image", "input_file", "input_audio", "refusal", "summary_text", "reasoning_text"})


class Edge(BaseModel):
    """A part of a request: JSON types are taken as they are, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


ItemId = Annotated[str, Field(min_length=1, max_length=128)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class InputText(Edge):
    """A piece of text for the model."""

    type: Literal["input_text"]
    text: str

    def stored(self) -> Json:
        return {"type": "input_text", "text": self.text}


class OutputText(Edge):
    """A piece of text that a model said before."""

    type: Literal["output_text", "input_text"]
    text: str
    annotations: Objects | None = None
    logprobs: Objects | None = None

    def stored(self) -> Json:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": self.annotations or [],
            "logprobs": self.logprobs or [],
        }


def _check_part(value: Any) -> Any:
    """A part must be an object with a type that we know; its model checks the rest."""
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    if isinstance(kind := value.get("type"), str) and kind in PARTS_NOT_YET:
        raise refused(f"'{{path}}': '{kind}' is not supported yet.", "unsupported_parameter", "type")
    return value


def _check_content(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise wrong_kind("a string or an array", value)
    return value


def _text_or_list(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<list>"


InputContent = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[Annotated[InputText, BeforeValidator(_check_part)]], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_text_or_list),
    BeforeValidator(_check_content),
]
OutputContent = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[Annotated[OutputText, BeforeValidator(_check_part)]], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_text_or_list),
    BeforeValidator(_check_content),
]


class InputMessage(Edge):
    """What a user says, or a system or developer message."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"role": "user", "content": "Tell me a joke."}]},
    )

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    content: InputContent
    id: ItemId | None = None
    status: ItemStatus | None = None
    phase: None = None

    def stored(self, new_id: str) -> Json:
        parts = [InputText(type="input_text", text=self.content)] if isinstance(self.content, str) else self.content
        return _message(self.id or new_id, self.status, self.role, [part.stored() for part in parts])


class OutputMessage(Edge):
    """What a model said before, for instance an item of an earlier response's `output`."""

    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: OutputContent
    id: ItemId | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None

    def stored(self, new_id: str) -> Json:
        parts = [OutputText(type="output_text", text=self.content)] if isinstance(self.content, str) else self.content
        message = _message(self.id or new_id, self.status, self.role, [part.stored() for part in parts])
        return message if self.phase is None else {**message, "phase": self.phase}


def _message(item_id: str, status: str | None, role: str, content: list[Json]) -> Json:
    return {"type": "message", "id": item_id, "status": status or "completed", "role": role, "content": content}


def _message_tag(item: Json) -> str:
    return "<assistant>" if item.get("role") == "assistant" else "<message>"


_ITEM_TAGS = {"message": _message_tag}
"""Item type -> which member of `Item` checks it."""

_ROLES = ("user", "assistant", "system", "developer")


def _check_item(value: Any) -> Any:
    """An item must be an object with a type that we know; its model checks the rest."""
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    kind = value.get("type", "message")
    if not isinstance(kind, str):
        raise refused("Invalid type for '{path}': expected a string.", "invalid_type", "type")
    if kind in NOT_YET:
        raise refused(f"'{{path}}': '{kind}' is not supported yet.", "unsupported_parameter", "type")
    if kind not in _ITEM_TAGS:
        raise refused(f"Invalid value for '{{path}}': '{shortened(kind)}'.", "invalid_value", "type")
    role = value.get("role", "user")
    if kind == "message" and isinstance(role, str) and role not in _ROLES:
        allowed = ", ".join(f"'{name}'" for name in _ROLES)
        message = f"Invalid value for '{{path}}': '{shortened(role)}'. Supported values are: {allowed}."
        raise refused(message, "invalid_value", "role")
    return value


def _item_tag(value: Any) -> str:
    return _ITEM_TAGS[value.get("type", "message")](value)


Item = Annotated[
    Annotated[InputMessage, Tag("<message>")] | Annotated[OutputMessage, Tag("<assistant>")],
    Discriminator(_item_tag),
    BeforeValidator(_check_item),
]
