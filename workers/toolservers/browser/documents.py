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
    """What is shown."""

    RESULTS = "results of a search"
    PAGE = "a page"
    SOURCE = "a page's source"
    MATCHES = "what `find` found"


@dataclass(frozen=True, slots=True)
class Link:
    """Where link number `id` leads, and from which line on that page is to be shown."""

    url: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A hit, and the lines that show it."""

    url: str
    title: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Document:
    """What a cursor points to. Never changes."""

    kind: Kind
    url: str
    """Of the page; of the page searched for MATCHES; empty for RESULTS."""
    shown_url: str
    title: str
    lines: tuple[str, ...]
    links: tuple[Link, ...] = ()
    results: tuple[Result, ...] = ()
    searched: Document | None = None
    """Of MATCHES: what its links lead to."""


def cleaned(text: str) -> str:
    """`text` without what would look like a link or citation of ours, and without control characters."""
    return text.translate(_MARKS).replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)


def one_line(text: str, limit: int) -> str:
    """`text` cleaned, on one line, at most `limit` characters."""
    joined = " ".join(cleaned(text).split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def label(text: str, limit: int = MAX_TITLE) -> str:
    """`text` fit to stand in a link."""
    return one_line(text, limit).replace("†", "‡")


def domain_of(url: str) -> str:
    """Host and port, or nothing."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def link_text(number: int, text: str, domain: str) -> str:
    """A link as gpt-oss knows it; `domain` is empty where it is the page's own."""
    return f"【{number}†{text}†{domain}】" if domain else f"【{number}†{text}】"


def wrapped(text: str) -> list[str]:
    """Lines of at most WIDTH characters; joined again they are `text`."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += textwrap.wrap(line, WIDTH, replace_whitespace=False, drop_whitespace=False) or [""]
    return lines


_LINK = re.compile(r"【\d+†(?P<text>[^†】]+)(?P<domain>†[^†】]+)?】")


def without_links(text: str) -> str:
    """`text` with the words of its links alone, and as many line ends as before."""
    return _LINK.sub(lambda match: match["text"] + "\n" * (match["domain"] or "").count("\n"), text)
