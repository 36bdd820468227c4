"""The browser of one session: search, open, find, and the pages shown before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from workers.toolservers.browser import reader, schema
from workers.toolservers.browser.documents import MAX_URL, Document, Kind, Link, one_line
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Backend, Page
from workers.toolservers.browser.stack import PageStack
from workers.toolservers.browser.views import View, last_line

LINES_BEFORE = 4
"""Lines shown before the line that a link leads to."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one session and of one call."""

    seconds: float = 20.0
    """Deadline of one search, or of one page with all its redirects."""
    results: int = 20
    pages: int = 32
    page_characters: int = 512 * 1024
    view_bytes: int = 4096
    """Bytes of UTF-8: 4096 are about 1024 tokens of English."""

    @property
    def max_view_bytes(self) -> int:
        """The limit if the model asks for a number of lines."""
        return max(self.view_bytes, 64 * 1024)


class Browser:
    """The browser of one session. Its calls run one after the other: "the most recent page" must have a meaning.

    `slots` limits how many calls of all sessions run at once.
    """

    def __init__(self, backend: Backend, limits: Limits, slots: asyncio.Semaphore) -> None:
        self._backend = backend
        self._limits = limits
        self._slots = slots
        self._stack = PageStack(limits.pages)
        self._lock = asyncio.Lock()

    async def call(self, request: schema.Search | schema.Open | schema.Find) -> View:
        """Carries out a request. Raises BrowserError; then the page stack is unchanged."""
        async with self._lock, self._slots:
            match request:
                case schema.Search():
                    return await self._search(request)
                case schema.Open():
                    return await self._open(request)
                case schema.Find():
                    return await self._find(request)

    async def _search(self, request: schema.Search) -> View:
        action: dict[str, Any] = {"type": "search", "query": request.query, "sources": []}
        async with self._deadline(action):
            hits = await self._backend.search(request.query, min(request.topn, self._limits.results))
        if not hits:
            raise BrowserError("The search found nothing: try other words.", action)
        action["sources"] = [{"type": "url", "url": hit.url} for hit in hits]
        document = await asyncio.to_thread(reader.read_hits, request.query, hits)
        return self._show(document, 0, -1, action)

    async def _open(self, request: schema.Open) -> View:
        link, document = self._target(request)
        action = {"type": "open_page", "url": link.url}
        if request.view_source:
            document = await self._read(link.url, reader.read_source, action)
        elif document is None:
            document = await self._read(link.url, reader.read, action)
        first = request.loc if request.loc >= 0 else max(0, link.line - LINES_BEFORE)
        return self._show(document, first, request.num_lines, {"type": "open_page", "url": document.url})

    def _target(self, request: schema.Open) -> tuple[Link, Document | None]:
        """The link to open, and its document if the session still has it."""
        number = request.id
        if isinstance(number, str):
            if not number.strip().isdecimal():
                return Link(_whole_url(number)), None  # named by its URL, so it is read from the web
            number = int(number.strip()[:9])
        document = self._stack.at(request.cursor)
        if number == -1:
            if request.view_source and document.kind not in (Kind.PAGE, Kind.SOURCE):
                raise BrowserError(f"`view_source` is for pages, and this is {document.kind.value}.")
            return Link(document.url), document
        if number >= len(document.links):
            raise BrowserError(f"There is no link {number} on that page.")
        link = document.links[number]
        return link, document.searched or self._stack.page_of(link.url)

    async def _read(self, url: str, read: Callable[[Page, int], Document], action: dict[str, Any]) -> Document:
        async with self._deadline(action):
            page = await self._backend.fetch(url)
        return await asyncio.to_thread(read, page, self._limits.page_characters)

    async def _find(self, request: schema.Find) -> View:
        document = self._stack.at(request.cursor)
        if document.kind not in (Kind.PAGE, Kind.SOURCE):
            raise BrowserError(f"`find` searches pages, and this is {document.kind.value}: open one first.")
        action = {"type": "find_in_page", "url": document.url, "pattern": request.pattern}
        matches = await asyncio.to_thread(reader.read_matches, document, request.pattern)
        if matches is None:
            raise BrowserError(f"The page has no match for `{one_line(request.pattern, 100)}`.", action)
        return self._show(matches, 0, -1, action)

    def _show(self, document: Document, first: int, num_lines: int, action: dict[str, Any]) -> View:
        limits = self._limits
        try:
            last = last_line(document, first, num_lines, limits.view_bytes, limits.max_view_bytes)
        except BrowserError as error:
            raise BrowserError(str(error), action) from None
        return View(self._stack.push(document), document, first, last, action)

    @asynccontextmanager
    async def _deadline(self, action: dict[str, Any]) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limits.seconds):
                yield
        except TimeoutError:
            raise BrowserError(f"It took longer than {self._limits.seconds:g} s, and was given up.", action) from None
        except BrowserError as error:
            raise BrowserError(str(error), error.action or action) from None


def _whole_url(text: str) -> str:
    url = text.strip()
    if "://" not in url:
        raise BrowserError("`id` is neither the number of a link nor a whole URL (https://...).")
    if len(url) > MAX_URL:
        raise BrowserError(f"The URL is longer than {MAX_URL} characters.")
    try:
        urlsplit(url)
    except ValueError:
        raise BrowserError("That is not a URL.") from None
    return url
