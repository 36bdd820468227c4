"""The `tools` and the `tool_choice` of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic.json_schema import SkipJsonSchema

from app.protocol.requests.base import Part, RequestModel, check_object_type, tag_of
from app.protocol.requests.tools.omitted import OMITTED, OmittedTool
from app.protocol.requests.validation import wrong_kind


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


_TYPES = ("function", "custom")
Tool = Annotated[
    Annotated[ChatFunctionTool, Tag("<function>")]
    | Annotated[ChatCustomTool, Tag("<custom>")]
    | Annotated[SkipJsonSchema[OmittedTool], Tag("<omitted>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(_TYPES, hidden=OMITTED)),
]


class Named(RequestModel):
    name: str


class ChatChosenFunction(RequestModel):
    type: Literal["function"]
    function: Named


class ChatChosenCustom(RequestModel):
    type: Literal["custom"]
    custom: Named


_Chosen = Annotated[ChatChosenFunction, Tag("<function>")] | Annotated[ChatChosenCustom, Tag("<custom>")]
_AnyChosen = Annotated[_Chosen, Discriminator(tag_of), BeforeValidator(check_object_type(_TYPES))]


class Allowed(RequestModel):
    mode: str
    tools: Annotated[list[_AnyChosen], Field(fail_fast=True)]


class ChatAllowedTools(RequestModel):
    """The model may call only these of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def _check_choice(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise wrong_kind("a string or an object", value)
    return value if isinstance(value, str) else check_object_type((*_TYPES, "allowed_tools"))(value)


ToolChoice = Annotated[
    Annotated[str, Tag("<mode>")] | _Chosen | Annotated[ChatAllowedTools, Tag("<allowed_tools>")],
    Discriminator(lambda value: "<mode>" if isinstance(value, str) else tag_of(value)),
    BeforeValidator(_check_choice),
]
