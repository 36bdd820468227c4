"""The lines of a document that one call shows, as text for the model and as facts for the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workers.toolservers.browser.documents import Document, Kind
from workers.toolservers.browser.errors import BrowserError

ASKED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class View:
    """Lines `first` to `last` of `document`."""

    cursor: int
    document: Document
    first: int
    last: int
    action: dict[str, Any]

    def text(self) -> str:
        """The text in gpt-oss's format."""
        document = self.document
        head = f"[{self.cursor}] {document.title}{f' ({document.shown_url})' if document.shown_url else ''}"
        scrollbar = f"**viewing lines [{self.first} - {self.last}] of {len(document.lines) - 1}**"
        numbers = range(self.first, self.last + 1)
        return "\n".join([head, scrollbar, "", *(_numbered(document, number) for number in numbers)])

    def facts(self) -> dict[str, Any]:
        """The `structuredContent` that docs/toolservers.md describes ("What a call returns")."""
        facts: dict[str, Any] = {
            "cursor": self.cursor,
            "url": self.document.url,
            "title": (self.document.searched or self.document).title,
            "lines": [self.first, self.last],
            "action": self.action,
        }
        if self.document.kind is Kind.RESULTS:
            results = self.document.results
            facts["results"] = [{"url": r.url, "title": r.title, "lines": [r.first, r.last]} for r in results]
        return facts


def _numbered(document: Document, number: int) -> str:
    return f"L{number}: {document.lines[number]}"


def last_line(document: Document, first: int, num_lines: int, view_bytes: int) -> int:
    """The last line to show, from line `first` on.

    Shows as many lines as fit `view_bytes` of UTF-8, or `num_lines` lines if they fit ASKED_BYTES; always one line.
    Raises BrowserError if the document has no line `first`.
    """
    end = len(document.lines) - 1
    if first > end:
        raise BrowserError(f"`loc` is {first}, but the last line of the page is {end}.")
    if num_lines > 0:
        end, view_bytes = min(end, first + num_lines - 1), max(view_bytes, ASKED_BYTES)
    room = view_bytes
    for number in range(first, end + 1):
        room -= len(_numbered(document, number).encode("utf-8", "replace")) + 1
        if room < 0:
            return max(first, number - 1)
    return end
