"""A page as the model sees it: numbered lines, and the links in them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

WIDTH = 80
MAX_TITLE = 200
MAX_URL = 2048
"""Characters. A longer link stays plain text."""

_MARKS = str.maketrans({"【": "〖", "】": "〗", "◼": "◾", "\u200b": None})
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), 127, 0x2028, 0x2029])


class Kind(Enum):
    """What a document shows; the value is for messages."""

    RESULTS = "results of a search"
    PAGE = "a page"
    SOURCE = "a page's source"
    MATCHES = "what `find` found"


@dataclass(frozen=True, slots=True)
class Link:
    """The URL of a link, and the first line of that page to show."""

    url: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A search hit, and the first and last line that show it."""

    url: str
    title: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Document:
    """The document that a cursor points to."""

    kind: Kind
    url: str
    """URL of the page; for MATCHES of the page that was searched; empty for RESULTS."""
    shown_url: str
    title: str
    lines: tuple[str, ...]
    links: tuple[Link, ...] = ()
    results: tuple[Result, ...] = ()
    searched: Document | None = None
    """The document that was searched, of MATCHES."""


def clean(text: str) -> str:
    """`text` without control characters, and without marks that look like links or citations of this format."""
    return text.translate(_MARKS).replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)


def one_line(text: str, limit: int) -> str:
    """`text` cleaned, on one line, in at most `limit` characters."""
    joined = " ".join(clean(text).split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def label(text: str, limit: int = MAX_TITLE) -> str:
    """`text` as the text of a link."""
    return one_line(text, limit).replace("†", "‡")


def domain_of(url: str) -> str:
    """Host and port of a URL; empty if it has none."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def link_text(number: int, text: str, domain: str) -> str:
    """A link in gpt-oss's format; `domain` is empty if it is the domain of the page itself."""
    return f"【{number}†{text}†{domain}】" if domain else f"【{number}†{text}】"


def wrap(text: str) -> list[str]:
    """`text` as lines of at most WIDTH characters; joined they are `text`."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += textwrap.wrap(line, WIDTH, replace_whitespace=False, drop_whitespace=False) or [""]
    return lines


_LINK = re.compile(r"【\d+†(?P<text>[^†】]+)(?P<domain>†[^†】]+)?】")


def strip_links(text: str) -> str:
    """`text` with each link replaced by its words, and the same number of lines."""
    return _LINK.sub(lambda match: match["text"] + "\n" * (match["domain"] or "").count("\n"), text)
