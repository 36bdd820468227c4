"""`tools`: what a model may call, in the client's own code and on the server (hosted.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from app.protocol.hosted_kinds import KIND_OF_TOOL
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.base import ByType, Part, RequestModel, ToolName
from app.protocol.requests.fields import MAX_TOOLS
from app.protocol.requests.tools.hosted import AnyHostedTool
from app.protocol.requests.tools.local import AnyLocalTool
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import refused
from app.protocol.types import Json

UNSUPPORTED_TOOLS = frozenset(
    {
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "programmatic_tool_calling",
    }
)
"""Tool types of openai's ToolParam that are refused; a test compares the list with the package."""

CLIENT_TYPES = ("function", "custom")
"""Types of tools that the client runs."""
TOOL_TYPES = (*CLIENT_TYPES, "namespace", "tool_search", *LOCAL_TOOLS, *KIND_OF_TOOL)
MAX_NAMESPACE_TOOLS = 1024
"""Most tools of one namespace; as many as one MCP server may list."""


def check_object_schema(code: str) -> BeforeValidator:
    """Returns a validator for a JSON schema that must describe an object; `code` is the error's."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and value and (kind := value.get("type")) != "object":
            found = f"'{kind}'" if isinstance(kind, str) else "none"
            raise refused(f"Invalid schema for '{{path}}': its 'type' must be 'object', but is {found}.", code)
        return value

    return BeforeValidator(check)


class _ClientTool(Part):
    """A tool in the client's own code."""

    name: ToolName
    description: str | None = None
    defer_loading: bool | None = None

    @property
    def known_as(self) -> str:
        return f"the name '{self.name}'"

    def _deferred(self) -> Json:
        return {"defer_loading": True} if self.defer_loading else {}


class FunctionTool(
    _ClientTool,
    example={
        "type": "function",
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
            "additionalProperties": False,
        },
        "strict": True,
    },
):
    """A function. With `strict` its arguments always fit `parameters`."""

    type: Literal["function"]
    parameters: Annotated[dict[str, Any] | None, check_object_schema("invalid_function_parameters")] = None
    strict: bool | None = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
            **self._deferred(),
        }


class TextFormat(RequestModel):
    type: Literal["text"]


class GrammarFormat(RequestModel):
    """The input of the tool always fits a grammar."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


CustomFormat = Annotated[TextFormat | GrammarFormat, ByType()]


class CustomTool(_ClientTool):
    """A tool that takes text."""

    type: Literal["custom"]
    format: CustomFormat | None = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "format": {"type": "text"} if self.format is None else self.format.model_dump(),
            **self._deferred(),
        }


def check_names(tools: list[Any]) -> list[Any]:
    seen: set[str] = set()
    for known_as in (name for tool in tools if not isinstance(tool, OmittedTool) for name in _known_as(tool)):
        if known_as in seen:
            raise refused(f"Invalid '{{path}}': two tools have {known_as}.", "invalid_value")
        seen.add(known_as)
    return tools


def _known_as(tool: Any) -> list[str]:
    """What a choice, or an error, calls the tool: in a namespace by `namespace.name`, which may be a plain name too."""
    if (kind := LOCAL_TOOLS.get(tool.type)) is not None:
        return [tool.known_as, f"the name '{kind.function}'"]
    nested = [f"the name '{tool.name}.{mine.name}'" for mine in tool.tools] if tool.type == "namespace" else []
    return [tool.known_as, *nested]


_NOT_LOADED = {*UNSUPPORTED_TOOLS, *KIND_OF_TOOL}
ClientTool = Annotated[FunctionTool | CustomTool, ByType({*_NOT_LOADED, "namespace", *LOCAL_TOOLS})]


class NamespaceTool(Part):
    """Tools of the client under one name: two namespaces may have tools of the same name."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[
        list[ClientTool],
        Field(min_length=1, max_length=MAX_NAMESPACE_TOOLS, fail_fast=True),
        AfterValidator(check_names),
    ]

    @property
    def known_as(self) -> str:
        return f"the namespace '{self.name}'"

    def stored(self) -> Json:
        tools = [tool.stored() for tool in self.tools]
        return {"type": self.type, "name": self.name, "description": self.description, "tools": tools}


Execution = Literal["client", "server"]


class ToolSearchTool(Part):
    """A search for tools that load later: the model may call the tools that it finds.

    The client's own code searches, or the server, among the tools of the request.
    """

    type: Literal["tool_search"]
    execution: Execution | None = None
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, check_object_schema("invalid_function_parameters")] = None

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        if self.execution != "client" and self.parameters is not None:
            message = "'{path}' describe a search of your own: leave them out, or send 'execution': 'client'."
            raise refused(message, "unsupported_parameter", "parameters")
        return self

    def stored(self) -> Json:
        return {**self.model_dump(), "execution": self.execution or "server"}

    @property
    def known_as(self) -> str:
        return f"the name '{self.type}'"


_Loaded = FunctionTool | CustomTool | NamespaceTool
_Added = _Loaded | ToolSearchTool | AnyLocalTool | SkipJsonSchema[OmittedTool]

LoadedTool = Annotated[_Loaded | SkipJsonSchema[OmittedTool], ByType({*_NOT_LOADED, "tool_search", *LOCAL_TOOLS})]
"""What a tool search found."""

AddedTool = Annotated[_Added, ByType(_NOT_LOADED)]
"""A tool of an item `additional_tools`: hosted tools are for `tools` alone."""

Tool = Annotated[_Added | AnyHostedTool, ByType(UNSUPPORTED_TOOLS)]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), AfterValidator(check_names)]
