"""Hosted tools in `tools` and `tool_choice`: one model of the tool and one of the choice for each kind.

The operator decides which of them there are (config/tools.py); app/responses/create/mcp_servers.py checks it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, Tag

from app.protocol.hosted_kinds import (
    CODE_INTERPRETER,
    KIND_OF_TOOL,
    WEB_SEARCH,
    HostedToolKind,
    WebSearchPreviewType,
    WebSearchType,
)
from app.protocol.requests.base import Part, RequestModel
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


class _BuiltInTool(Part):
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


MAX_DOMAINS = 100

Domain = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\s/:@]+$")]
"""Without https://. It stands for its subdomains, too."""
Domains = Annotated[list[Domain], Field(max_length=MAX_DOMAINS, fail_fast=True)]
Place = Annotated[str, Field(max_length=256)]


class Filters(RequestModel):
    """Where a search may look; not in OpenAI's types: where it must not."""

    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None

    def stored(self) -> Json:
        found = {"allowed_domains": self.allowed_domains or [], "blocked_domains": self.blocked_domains or []}
        return {name: domains for name, domains in found.items() if domains}


class UserLocation(RequestModel):
    """Where the user is. The model is told; an engine that takes a country gets it."""

    type: Literal["approximate"] = "approximate"
    city: Place | None = None
    country: Place | None = None
    region: Place | None = None
    timezone: Place | None = None

    def stored(self) -> Json:
        return self.model_dump(exclude_none=True)


class _WebSearch(_BuiltInTool):
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None
    search_content_types: Annotated[list[str] | None, SupportedValues((["text"],))] = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "search_context_size": self.search_context_size or "medium",
            "user_location": None if self.user_location is None else self.user_location.stored(),
        }


class WebSearch(_WebSearch):
    """Searches the web, opens pages and finds text in them."""

    type: WebSearchType
    filters: Filters | None = None
    external_web_access: Annotated[bool | None, SupportedValues((True,))] = None
    indexed_web_access: Annotated[bool | None, SupportedValues((False,))] = None

    def stored(self) -> Json:
        return {**super().stored(), "filters": (self.filters.stored() if self.filters else None) or None}


class WebSearchPreview(_WebSearch):
    """Web search under its older names."""

    type: WebSearchPreviewType
    filters: Annotated[Json | None, SupportedValues()] = None


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
