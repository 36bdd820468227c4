"""What a back end finds and fetches, and the seam that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Format(Enum):
    """How a page's content is to be read."""

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
    """A page as it came. `url` is where it was found, after redirects."""

    url: str
    content: str
    format: Format
    title: str = ""
    """What the back end calls it; empty: the page itself says."""


class Backend(Protocol):
    """Where results and pages come from. Both raise BrowserError, one sentence for the model."""

    async def search(self, query: str, topn: int) -> list[Hit]:
        """At most `topn` hits, the best first; empty where there is none."""
        ...

    async def fetch(self, url: str) -> Page:
        """The page at `url`, a whole URL that the model or a page named: not to be trusted."""
        ...
