"""`tool_choice`: whether, and what, a model must call."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.protocol.hosted_kinds import KIND_OF_TOOL, WebSearchType
from app.protocol.requests.base import ByType, ChosenName, RequestModel
from app.protocol.requests.fields import MAX_TOOLS
from app.protocol.requests.tools.any_tool import UNSUPPORTED_TOOLS
from app.protocol.requests.tools.mcp import ChosenMcp
from app.protocol.types import Json

UNSUPPORTED_CHOICES = UNSUPPORTED_TOOLS | {"computer_use", "namespace", "tool_search"}


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


_Chosen = ChosenFunction | ChosenCustom | ChosenMcp | ChosenByType
Chosen = Annotated[_Chosen, ByType(UNSUPPORTED_CHOICES)]


class AllowedTools(RequestModel):
    """The model may call only these of the tools. The prompt shows all of them, so that it stays cached."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[Chosen], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]

    def stored(self) -> Json:
        return {"type": self.type, "mode": self.mode, "tools": [tool.stored() for tool in self.tools]}


ToolChoice = Annotated[Literal["none", "auto", "required"] | _Chosen | AllowedTools, ByType(UNSUPPORTED_CHOICES)]
