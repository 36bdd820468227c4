"""The pages of one session, by cursor."""

from __future__ import annotations

from collections import deque

from workers.toolservers.browser.documents import Document, Kind
from workers.toolservers.browser.errors import BrowserError


class PageStack:
    """The documents shown so far. Cursors count up from 0; beyond `limit` documents the oldest are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next = 0
        self._documents: deque[Document] = deque(maxlen=limit)

    def push(self, document: Document) -> int:
        """Adds `document`; returns its cursor."""
        self._documents.append(document)
        self._next += 1
        return self._next - 1

    def at(self, cursor: int) -> Document:
        """The document at `cursor`; -1 is the latest. Raises BrowserError if there is none."""
        if self._next == 0:
            raise BrowserError("No page is open yet: use `search`, or `open` with a URL as `id`.")
        cursor = self._next - 1 if cursor == -1 else cursor
        oldest = self._next - len(self._documents)
        if oldest <= cursor < self._next:
            return self._documents[cursor - oldest]
        if cursor < oldest:
            raise BrowserError(f"The page at cursor {cursor} is gone: only the last {self._limit} are kept.")
        raise BrowserError(f"There is no cursor {cursor}: the latest is {self._next - 1}.")

    def page_of(self, url: str) -> Document | None:
        """The latest document of the page at `url`; None if there is none."""
        for document in reversed(self._documents):
            if document.kind is Kind.PAGE and document.url == url:
                return document
        return None
