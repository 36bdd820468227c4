"""`tools` and `tool_choice`: what a model may call, in the caller's own code and on the server (`server_tools.py`)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from app.protocol.requests.base import Json, RequestModel, ToolName, check_kind, check_type, tag_of
from app.protocol.requests.fields import SupportedValues
from app.protocol.requests.hosted_tools import (
    SERVER_TOOLS,
    WEB_SEARCHES,
    ChosenCodeInterpreter,
    ChosenMcp,
    ChosenWebSearch,
    CodeInterpreter,
    Mcp,
    WebSearch,
    WebSearchPreview,
)
from app.protocol.requests.validation import refused, wrong_kind

TOOLS_NOT_YET = frozenset(
    {
        "apply_patch",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "namespace",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
    }
)
"""Tool types of openai's ToolParam that are refused; a test holds the list against the package."""

CHOICES_NOT_YET = TOOLS_NOT_YET | {"computer_use"}

_TOOLS = ("function", "custom", *SERVER_TOOLS)


def check_object_schema(code: str) -> BeforeValidator:
    """For a JSON schema that must describe an object; `code` is that of the refusal."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and value and (kind := value.get("type")) != "object":
            found = f"'{kind}'" if isinstance(kind, str) else "none"
            raise refused(f"Invalid schema for '{{path}}': its 'type' must be 'object', but is {found}.", code)
        return value

    return BeforeValidator(check)


class _Tool(RequestModel):
    """What every tool has. Programs that call tools, and tools that load later, are not supported yet."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    name: ToolName
    description: str | None = None
    allowed_callers: Annotated[list[str] | None, SupportedValues((["direct"],))] = None
    defer_loading: Annotated[bool | None, SupportedValues((False,))] = None
    async_: Annotated[bool | None, SupportedValues((False,)), Field(alias="async")] = None

    @property
    def known_as(self) -> str:
        return f"the name '{self.name}'"


class FunctionTool(_Tool):
    """A function in the caller's own code. With `strict` its arguments always fit `parameters`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
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
                }
            ]
        }
    )

    type: Literal["function"]
    parameters: Annotated[dict[str, Any] | None, check_object_schema("invalid_function_parameters")] = None
    strict: bool | None = None
    output_schema: Annotated[Json | None, SupportedValues()] = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


class TextFormat(RequestModel):
    type: Literal["text"]


class GrammarFormat(RequestModel):
    """The input of the tool always fits a grammar."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


CustomFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")] | Annotated[GrammarFormat, Tag("<grammar>")],
    Discriminator(tag_of),
    BeforeValidator(check_kind(("text", "grammar"))),
]


class CustomTool(_Tool):
    """A tool in the caller's own code that takes text."""

    type: Literal["custom"]
    format: CustomFormat | None = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "format": {"type": "text"} if self.format is None else self.format.model_dump(),
        }


def _tool_tag(value: Any) -> str:
    """The discriminator of tools, and of choices of them: web_search has four names, of two shapes."""
    kind = value["type"]
    if kind in WEB_SEARCHES:
        return "<web_search_preview>" if "preview" in kind else "<web_search>"
    return f"<{kind}>"


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[CustomTool, Tag("<custom>")]
    | Annotated[CodeInterpreter, Tag("<code_interpreter>")]
    | Annotated[WebSearch, Tag("<web_search>")]
    | Annotated[WebSearchPreview, Tag("<web_search_preview>")]
    | Annotated[Mcp, Tag("<mcp>")],
    Discriminator(_tool_tag),
    BeforeValidator(check_kind(_TOOLS, TOOLS_NOT_YET)),
]


def _check_names(tools: list[Any]) -> list[Any]:
    seen: set[str] = set()
    for tool in tools:
        if tool.known_as in seen:
            raise refused(f"Invalid '{{path}}': two tools have {tool.known_as}.", "invalid_value")
        seen.add(tool.known_as)
    return tools


Tools = Annotated[list[Tool], Field(fail_fast=True), AfterValidator(_check_names)]


class _ChosenByName(RequestModel):
    type: str
    name: ToolName

    field: ClassVar[str] = "name"

    @property
    def what(self) -> str:
        return f"{self.type} tool '{self.name}'"

    def stored(self) -> Json:
        return {"type": self.type, "name": self.name}


class ChosenFunction(_ChosenByName):
    """This function must be called."""

    type: Literal["function"]

    def means(self, tool: Any) -> bool:
        return isinstance(tool, FunctionTool) and tool.name == self.name


class ChosenCustom(_ChosenByName):
    """This custom tool must be called."""

    type: Literal["custom"]

    def means(self, tool: Any) -> bool:
        return isinstance(tool, CustomTool) and tool.name == self.name


Chosen = Annotated[
    Annotated[ChosenFunction, Tag("<function>")]
    | Annotated[ChosenCustom, Tag("<custom>")]
    | Annotated[ChosenCodeInterpreter, Tag("<code_interpreter>")]
    | Annotated[ChosenWebSearch, Tag("<web_search>")]
    | Annotated[ChosenWebSearch, Tag("<web_search_preview>")]
    | Annotated[ChosenMcp, Tag("<mcp>")],
    Discriminator(_tool_tag),
    BeforeValidator(check_kind(_TOOLS, CHOICES_NOT_YET)),
]


class AllowedTools(RequestModel):
    """Only these of the tools may be called: all are shown to the model, which keeps its prompt cached."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[Chosen], Field(min_length=1, fail_fast=True)]

    def stored(self) -> Json:
        return {"type": self.type, "mode": self.mode, "tools": [tool.stored() for tool in self.tools]}


def _check_choice(value: Any) -> Any:
    if isinstance(value, dict):
        if "type" not in value:
            raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", "type")
        check_type(value["type"], (*_TOOLS, "allowed_tools"), CHOICES_NOT_YET)
    elif not isinstance(value, str):
        raise wrong_kind("a string or an object", value)
    return value


def _choice_tag(value: Any) -> str:
    return "<mode>" if isinstance(value, str) else _tool_tag(value)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[ChosenFunction, Tag("<function>")]
    | Annotated[ChosenCustom, Tag("<custom>")]
    | Annotated[ChosenCodeInterpreter, Tag("<code_interpreter>")]
    | Annotated[ChosenWebSearch, Tag("<web_search>")]
    | Annotated[ChosenWebSearch, Tag("<web_search_preview>")]
    | Annotated[ChosenMcp, Tag("<mcp>")]
    | Annotated[AllowedTools, Tag("<allowed_tools>")],
    Discriminator(_choice_tag),
    BeforeValidator(_check_choice),
]
