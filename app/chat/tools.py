"""The `tools` and the `tool_choice` of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.protocol.requests.base import ByType, Part, RequestModel
from app.protocol.requests.tools.omitted import OmittedTool


class FunctionDefinition(Part):
    """With `strict`, the arguments of a call always fit `parameters`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(Part):
    type: Literal["function"]
    function: FunctionDefinition


class ChatCustomFormat(RequestModel):
    type: str
    grammar: dict[str, Any] | None = None


class CustomDefinition(Part):
    name: str
    description: str | None = None
    format: ChatCustomFormat | None = None


class ChatCustomTool(Part):
    """A tool that takes text."""

    type: Literal["custom"]
    custom: CustomDefinition


Tool = Annotated[ChatFunctionTool | ChatCustomTool | SkipJsonSchema[OmittedTool], ByType()]


class Named(RequestModel):
    name: str


class ChatChosenFunction(RequestModel):
    type: Literal["function"]
    function: Named


class ChatChosenCustom(RequestModel):
    type: Literal["custom"]
    custom: Named


_Chosen = ChatChosenFunction | ChatChosenCustom


class Allowed(RequestModel):
    mode: str
    tools: Annotated[list[Annotated[_Chosen, ByType()]], Field(fail_fast=True)]


class ChatAllowedTools(RequestModel):
    """The model may call only these of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


ToolChoice = Annotated[str | _Chosen | ChatAllowedTools, ByType()]
