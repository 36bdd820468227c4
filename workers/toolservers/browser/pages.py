"""The results and pages of a back end, and the interface that all back ends share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from workers.toolservers.browser.options import SearchOptions


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
