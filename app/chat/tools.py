"""The `tools` and the `tool_choice` of a chat request, as clients send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic.json_schema import SkipJsonSchema

from app.protocol.requests.base import RequestModel, check_object_type, tag_of
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import wrong_kind


class FunctionDefinition(RequestModel):
    """With `strict`, the arguments of a call always fit `parameters`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class Grammar(RequestModel):
    syntax: str
    definition: str


class ChatCustomFormat(RequestModel):
    """`grammar` is for the type `grammar`."""

    type: str
    grammar: Grammar | None = None


class CustomDefinition(RequestModel):
    name: str
    description: str | None = None
    format: ChatCustomFormat | None = None


class ChatCustomTool(RequestModel):
    """A tool that takes text."""

    type: Literal["custom"]
    custom: CustomDefinition


def _tool_tag(value: Any) -> str:
    return value.type if isinstance(value, OmittedTool) else tag_of(value)


_TYPES = ("function", "custom")


def _unless_omitted(check: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: value if isinstance(value, OmittedTool) else check(value))


Tool = Annotated[
    Annotated[ChatFunctionTool, Tag("<function>")]
    | Annotated[ChatCustomTool, Tag("<custom>")]
    | Annotated[SkipJsonSchema[OmittedTool], Tag("<omitted>")],
    Discriminator(_tool_tag),
    _unless_omitted(check_object_type(_TYPES)),
]


class ChosenName(RequestModel):
    name: str


class ChatChosenFunction(RequestModel):
    type: Literal["function"]
    function: ChosenName


class ChatChosenCustom(RequestModel):
    type: Literal["custom"]
    custom: ChosenName


_Chosen = Annotated[ChatChosenFunction, Tag("<function>")] | Annotated[ChatChosenCustom, Tag("<custom>")]


class Allowed(RequestModel):
    mode: str
    tools: Annotated[
        list[Annotated[_Chosen, Discriminator(tag_of), BeforeValidator(check_object_type(_TYPES))]],
        Field(fail_fast=True),
    ]


class ChatAllowedTools(RequestModel):
    """The model may call only these of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def _check_choice(value: Any) -> Any:
    if isinstance(value, dict):
        return check_object_type((*_TYPES, "allowed_tools"))(value)
    if not isinstance(value, str):
        raise wrong_kind("a string or an object", value)
    return value


ToolChoice = Annotated[
    Annotated[str, Tag("<mode>")] | _Chosen | Annotated[ChatAllowedTools, Tag("<allowed_tools>")],
    Discriminator(lambda value: "<mode>" if isinstance(value, str) else tag_of(value)),
    BeforeValidator(_check_choice),
]
