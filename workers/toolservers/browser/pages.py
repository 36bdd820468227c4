"""The results and pages of a back end, the interface that all back ends share, and a caller's options of searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.server_kind import SEARCH_META
from workers.toolservers.browser.errors import BrowserError

_SHOWN: Mapping[str, float] = {"low": 0.5, "medium": 1.0, "high": 2.0}

Domain = Annotated[str, Field(min_length=1, max_length=253)]


class SearchOptions(BaseModel):
    """The options of one call, in its `_meta`: domains, where its user is, how much to show.

    Longhaul sends what its own client asked of `web_search`. A server that knows this says so in `_meta` of its tool
    `search`, under the same name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    context_size: Literal["low", "medium", "high"] = "medium"
    allowed_domains: Annotated[tuple[Domain, ...], Field(max_length=100)] = ()
    blocked_domains: Annotated[tuple[Domain, ...], Field(max_length=100)] = ()
    country: Annotated[str, Field(max_length=256)] = ""
    """The user's country: its two letters in ISO 3166, if the caller keeps to OpenAI's documentation."""

    def allow(self, url: str) -> bool:
        """Whether the page may be found and opened. A domain stands for its subdomains, too."""
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return False
        if any(_is_within(host, domain) for domain in self.blocked_domains):
            return False
        return not self.allowed_domains or any(_is_within(host, domain) for domain in self.allowed_domains)

    def bytes_shown(self, usual: int) -> int:
        """The bytes to show at once, of those that are `usual`."""
        return int(usual * _SHOWN[self.context_size])


def options_of(meta: Mapping[str, Any] | None) -> SearchOptions:
    """The options of a call with this `_meta`. Raises BrowserError: a search without them could show too much."""
    try:
        return SearchOptions.model_validate((meta or {}).get(SEARCH_META) or {})
    except ValidationError:
        raise BrowserError("This browser does not know what its caller asks of searches.") from None


def _is_within(host: str, domain: str) -> bool:
    host, domain = host.lower().rstrip("."), domain.lower().strip(".")
    return host == domain or host.endswith(f".{domain}")


class Format(Enum):
    """The format of a page's content."""

    HTML = "html"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search."""

    url: str
    title: str
    summary: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was fetched. `url` is its URL after redirects."""

    url: str
    content: str
    format: Format
    title: str = ""
    """The back end's title of the page; empty: the page has its own."""


class Backend(Protocol):
    """The source of results and pages. Both methods raise BrowserError, one sentence for the model."""

    async def search(self, query: str, topn: int, options: SearchOptions) -> list[Hit]:
        """At most `topn` hits that the options allow, best first; empty if there are none."""
        ...

    async def fetch(self, url: str) -> Page:
        """The page at `url`, a whole URL. The model or a page named it, so it is untrusted."""
        ...
