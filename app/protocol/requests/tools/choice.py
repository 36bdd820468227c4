"""`tool_choice`: whether, and what, a model must call."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from app.protocol.hosted_kinds import KIND_OF_TOOL, WebSearchType
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.base import ChosenName, RequestModel, check_object_type, check_type, missing_type
from app.protocol.requests.fields import MAX_TOOLS
from app.protocol.requests.tools.any_tool import CLIENT_TYPES, UNSUPPORTED_TOOLS
from app.protocol.requests.tools.mcp import ChosenMcp
from app.protocol.requests.validation import wrong_kind
from app.protocol.types import Json

UNSUPPORTED_CHOICES = UNSUPPORTED_TOOLS | {"computer_use", "namespace", "tool_search"}
_CHOICE_TYPES = (*CLIENT_TYPES, *LOCAL_TOOLS, *KIND_OF_TOOL)


class _ChosenByName(RequestModel):
    """A tool of the client, by its name or, in a namespace, by `namespace.name`."""

    type: str
    name: ChosenName

    key: ClassVar[str] = "name"
    """The key that an error names if no tool matches."""

    @property
    def described(self) -> str:
        return f"{self.type} tool '{self.name}'"

    def matches(self, tool: Any) -> bool:
        if tool.type == "namespace":
            return any(mine.type == self.type and f"{tool.name}.{mine.name}" == self.name for mine in tool.tools)
        return bool(tool.type == self.type and tool.name == self.name)


class ChosenFunction(_ChosenByName):
    """The model must call this function."""

    type: Literal["function"]


class ChosenCustom(_ChosenByName):
    """The model must call this custom tool."""

    type: Literal["custom"]


class ChosenByType(RequestModel):
    """The model must call a tool of this type, or of another name of it."""

    type: Literal["shell", "apply_patch", "local_shell", "code_interpreter", WebSearchType]

    key: ClassVar[str] = "type"

    @property
    def described(self) -> str:
        return f"{_kind_of(self.type)} tool"

    def matches(self, tool: Any) -> bool:
        return _kind_of(tool.type) == _kind_of(self.type)


def _kind_of(tool_type: str) -> str:
    return KIND_OF_TOOL[tool_type].name if tool_type in KIND_OF_TOOL else tool_type


_Chosen = (
    Annotated[ChosenFunction, Tag("<function>")]
    | Annotated[ChosenCustom, Tag("<custom>")]
    | Annotated[ChosenMcp, Tag("<mcp>")]
    | Annotated[ChosenByType, Tag("<type>")]
)


def _tag_of(value: Any) -> str:
    return f"<{value['type']}>" if value["type"] in ("function", "custom", "mcp") else "<type>"


Chosen = Annotated[
    _Chosen,
    Discriminator(_tag_of),
    BeforeValidator(check_object_type(_CHOICE_TYPES, UNSUPPORTED_CHOICES)),
]


class AllowedTools(RequestModel):
    """The model may call only these of the tools. The prompt shows all of them, so that it stays cached."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[Chosen], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]

    def stored(self) -> Json:
        return {"type": self.type, "mode": self.mode, "tools": [tool.stored() for tool in self.tools]}


def _check_choice(value: Any) -> Any:
    if isinstance(value, dict):
        if "type" not in value:
            raise missing_type()
        check_type(value["type"], (*_CHOICE_TYPES, "allowed_tools"), UNSUPPORTED_CHOICES)
    elif not isinstance(value, str):
        raise wrong_kind("a string or an object", value)
    return value


def _choice_tag(value: Any) -> str:
    if isinstance(value, str):
        return "<mode>"
    return "<allowed_tools>" if value["type"] == "allowed_tools" else _tag_of(value)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | _Chosen
    | Annotated[AllowedTools, Tag("<allowed_tools>")],
    Discriminator(_choice_tag),
    BeforeValidator(_check_choice),
]
