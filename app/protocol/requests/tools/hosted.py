"""Hosted tools in `tools`: one model for each kind.

The operator decides which of them there are (config/tools.py); app/responses/create/mcp_servers.py checks it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocol.hosted_kinds import KIND_OF_TOOL, WebSearchType
from app.protocol.requests.base import Part, RequestModel
from app.protocol.requests.tools.mcp import Mcp
from app.protocol.requests.validation import refused, wrong_kind
from app.protocol.types import Json


class AutoContainer(Part):
    """A fresh sandbox for each response."""

    type: Literal["auto"]


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


class WebSearch(_BuiltInTool):
    """Searches the web, opens pages and finds text in them."""

    type: WebSearchType
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None
    filters: Filters | None = None

    def stored(self) -> Json:
        return {
            "type": self.type,
            "search_context_size": self.search_context_size or "medium",
            "user_location": None if self.user_location is None else self.user_location.stored(),
            "filters": (self.filters.stored() if self.filters else None) or None,
        }


AnyHostedTool = CodeInterpreter | WebSearch | Mcp
