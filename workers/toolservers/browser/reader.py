"""Makes documents, which are numbered lines, from pages, search hits and matches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from workers.toolservers.browser.documents import (
    MAX_TITLE,
    MAX_URL,
    Document,
    Kind,
    Link,
    Result,
    clean,
    domain_of,
    label,
    link_text,
    one_line,
    strip_links,
    wrap,
)
from workers.toolservers.browser.markup import render
from workers.toolservers.browser.pages import Format, Hit, Page

MAX_SUMMARY = 500
MAX_MATCHES = 50
MATCH_LINES = 4
"""Lines that a match of `find` shows."""


def read(page: Page, limit: int) -> Document:
    """The page as lines, truncated after `limit` characters. Slow: do not call it on the event loop."""
    if page.format is Format.HTML:
        text = render(page.content, page.url, limit)
        title, body, links, cut = text.title, text.text, text.links, text.cut
    else:
        title, links = "", ()
        body, cut = _head(clean(page.content), limit)
    title = one_line(page.title or title or domain_of(page.url), MAX_TITLE)
    return _document(Kind.PAGE, page.url, title, _with_note(cut, body, limit), links)


def read_source(page: Page, limit: int) -> Document:
    """The page's source, truncated after `limit` characters."""
    body, cut = _head(clean(page.content), limit)
    return _document(
        Kind.SOURCE, page.url, f"Source of {one_line(page.url, MAX_TITLE)}", _with_note(cut, body, limit), ()
    )


def _document(kind: Kind, url: str, title: str, body: str, links: tuple[Link, ...]) -> Document:
    shown = one_line(url, MAX_URL)
    lines = wrap(f"\nURL: {shown}\n{body}")
    return Document(kind, url, shown, title, tuple(lines), links)


def _head(text: str, limit: int) -> tuple[str, bool]:
    return text[:limit], len(text) > limit


def _with_note(cut: bool, body: str, limit: int) -> str:
    return f"{body}\n\n[The page goes on; only its first {limit} characters were read.]" if cut else body


def read_hits(query: str, hits: Sequence[Hit]) -> Document:
    """The results of a search as a document of links."""
    lines = ["", "URL: ", "# Search Results", ""]
    results = []
    for number, hit in enumerate(hits):
        title = label(hit.title) or domain_of(hit.url)
        link = link_text(number, title, domain_of(hit.url))
        entry = wrap(f"  * {link} {one_line(hit.summary, MAX_SUMMARY)}".rstrip())
        results.append(
            Result(hit.url, one_line(hit.title, MAX_TITLE) or title, len(lines), len(lines) + len(entry) - 1)
        )
        lines += entry
    links = tuple(Link(hit.url) for hit in hits)
    return Document(Kind.RESULTS, "", "", one_line(query, MAX_TITLE), tuple(lines), links, tuple(results))


def read_matches(document: Document, pattern: str) -> Document | None:
    """The matches of `pattern` in `document`, ignoring case and line ends; None if there are none."""
    lines = strip_links("\n".join(document.lines)).split("\n")
    found = _matching_lines(pattern, lines)
    if not found:
        return None
    parts = []
    for number, line in enumerate(found):
        parts += [f"# {link_text(number, f'match at L{line}', '')}", *lines[line : line + MATCH_LINES], ""]
    links = tuple(Link(document.url, line) for line in found)
    short = one_line(pattern, MAX_TITLE)
    title = f"Find results for text: `{short}` in `{document.title}`"
    shown = f"{document.shown_url}/find?pattern={quote(pattern)}"
    return Document(Kind.MATCHES, document.url, shown, title, tuple(parts[:-1]), links, searched=document)


def _matching_lines(pattern: str, lines: list[str]) -> list[int]:
    """The first line of each match, without matches that an earlier one shows; at most MAX_MATCHES."""
    words = r"\s+".join(re.escape(word) for word in clean(pattern).split())
    if not words:
        return []
    found: list[int] = []
    line = position = 0
    text = "\n".join(lines)
    for match in re.finditer(words, text, re.IGNORECASE):
        line += text.count("\n", position, match.start())
        position = match.start()
        if not found or line >= found[-1] + MATCH_LINES:
            found.append(line)
        if len(found) == MAX_MATCHES:
            break
    return found
