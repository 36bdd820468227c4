"""Hosted tools in `tools` and `tool_choice`: one model of the tool and one of the choice for each kind.

The operator decides which of them there are (config/tools.py); app/responses/create/mcp_servers.py checks it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Tag

from app.protocol.hosted_kinds import (
    CODE_INTERPRETER,
    KIND_OF_TOOL,
    WEB_SEARCH,
    HostedToolKind,
    WebSearchPreviewType,
    WebSearchType,
)
from app.protocol.requests.base import RequestModel
from app.protocol.requests.fields import DirectCallers, SupportedValues
from app.protocol.requests.tools.mcp import ChosenMcp, Mcp
from app.protocol.requests.validation import refused, wrong_kind
from app.protocol.types import Json


class AutoContainer(RequestModel):
    """A fresh sandbox for each response."""

    type: Literal["auto"]
    file_ids: Annotated[list[str] | None, SupportedValues(([],))] = None
    memory_limit: Annotated[str | None, SupportedValues()] = None
    network_policy: Annotated[Json | None, SupportedValues()] = None


def _check_container(value: Any) -> Any:
    if isinstance(value, str):
        raise refused("'{path}' by id is not supported yet (only {'type': 'auto'} is).", "unsupported_parameter")
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    return value


class _BuiltInTool(RequestModel):
    """A hosted tool that is known by its type: a request has at most one of its kind."""

    type: str

    @property
    def known_as(self) -> str:
        return f"the type '{KIND_OF_TOOL[self.type].name}'"


class CodeInterpreter(_BuiltInTool):
    """Runs Python in a sandbox that lives as long as the response."""

    type: Literal["code_interpreter"]
    container: Annotated[AutoContainer, BeforeValidator(_check_container)]
    allowed_callers: DirectCallers = None

    def stored(self) -> Json:
        return {"type": self.type, "container": {"type": self.container.type}}


class Filters(RequestModel):
    allowed_domains: Annotated[list[str] | None, SupportedValues(([],))] = None


class UserLocation(RequestModel):
    """A search does not learn where its user is."""

    type: Literal["approximate"]
    city: Annotated[str | None, SupportedValues()] = None
    country: Annotated[str | None, SupportedValues()] = None
    region: Annotated[str | None, SupportedValues()] = None
    timezone: Annotated[str | None, SupportedValues()] = None


class _WebSearch(_BuiltInTool):
    search_context_size: Annotated[str | None, SupportedValues(("medium",))] = None
    user_location: UserLocation | None = None
    search_content_types: Annotated[list[str] | None, SupportedValues((["text"],))] = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "search_context_size": "medium",
            "user_location": None if self.user_location is None else {"type": self.user_location.type},
        }


class WebSearch(_WebSearch):
    """Searches the web, opens pages and finds text in them."""

    type: WebSearchType
    filters: Filters | None = None
    external_web_access: Annotated[bool | None, SupportedValues((True,))] = None
    indexed_web_access: Annotated[bool | None, SupportedValues((False,))] = None

    def stored(self) -> Json:
        return {**super().stored(), "filters": None}


class WebSearchPreview(_WebSearch):
    """Web search under its older names."""

    type: WebSearchPreviewType


class _ChosenByType(RequestModel):
    """The model must call a tool of this kind."""

    type: str

    key: ClassVar[str] = "type"
    kind: ClassVar[HostedToolKind]

    @property
    def described(self) -> str:
        return f"{self.kind.name} tool"

    def matches(self, tool: Any) -> bool:
        return KIND_OF_TOOL.get(tool.type) is self.kind


class ChosenCodeInterpreter(_ChosenByType):
    """The model must run code."""

    kind: ClassVar[HostedToolKind] = CODE_INTERPRETER

    type: Literal["code_interpreter"]


class ChosenWebSearch(_ChosenByType):
    """The model must search the web."""

    kind: ClassVar[HostedToolKind] = WEB_SEARCH

    type: Literal[WebSearchType, WebSearchPreviewType]


def tool_tag(value: Any) -> str:
    """The discriminator of tools and of choices: web search has four names and two shapes."""
    kind = value["type"]
    if kind in get_args(WebSearchPreviewType):
        return "<web_search_preview>"
    return "<web_search>" if kind in get_args(WebSearchType) else f"<{kind}>"


AnyHostedTool = (
    Annotated[CodeInterpreter, Tag("<code_interpreter>")]
    | Annotated[WebSearch, Tag("<web_search>")]
    | Annotated[WebSearchPreview, Tag("<web_search_preview>")]
    | Annotated[Mcp, Tag("<mcp>")]
)
AnyHostedChoice = (
    Annotated[ChosenCodeInterpreter, Tag("<code_interpreter>")]
    | Annotated[ChosenWebSearch, Tag("<web_search>")]
    | Annotated[ChosenWebSearch, Tag("<web_search_preview>")]
    | Annotated[ChosenMcp, Tag("<mcp>")]
)
