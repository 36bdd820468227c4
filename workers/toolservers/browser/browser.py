"""The browser of one session: search, open, find, and the pages shown before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from workers.toolservers.browser import reader, schema
from workers.toolservers.browser.documents import MAX_URL, Document, Kind, Link, one_line
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Backend, SearchOptions
from workers.toolservers.browser.views import View, last_line
from workers.toolservers.settings import Seconds


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


T = TypeVar("T")

LINES_BEFORE = 4
"""Lines shown before the line that a link leads to."""


MAX_RESULTS = 20
"""Most results of a search, however many the model asks for."""


class Limits(BaseModel):
    """The limits of one session and of one call. Each is an option of the server."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    seconds: Seconds = 20.0
    """deadline of a search, and of a page with its redirects"""
    max_page_characters: Annotated[int, Field(ge=1024, le=2**26)] = 512 * 1024
    """characters kept of a page's text; the rest is left out"""
    max_pages: Annotated[int, Field(ge=1, le=10_000)] = 32
    """pages kept in a session; the oldest are dropped first"""
    view_bytes: Annotated[int, Field(ge=256, le=2**20)] = 4096
    """bytes shown at once if the model names no number of lines (4096 are about 1024 tokens)"""


class Browser:
    """The browser of one session. Its calls run one after the other: "the most recent page" must have a meaning.

    `slots` limits how many calls of all sessions run at once.
    """

    def __init__(self, backend: Backend, limits: Limits, slots: asyncio.Semaphore) -> None:
        self._backend = backend
        self._limits = limits
        self._slots = slots
        self._stack = PageStack(limits.max_pages)
        self._lock = asyncio.Lock()

    async def call(self, request: schema.Search | schema.Open | schema.Find, options: SearchOptions) -> View:
        """Carries out a request. Raises BrowserError; then the page stack is unchanged."""
        action: dict[str, Any] = {}
        async with self._lock, self._slots:
            try:
                document, first, num_lines = await self._document(request, options, action)
                last = last_line(document, first, num_lines, options.bytes_shown(self._limits.view_bytes))
            except BrowserError as error:
                error.action = action or None
                raise
            return View(self._stack.push(document), document, first, last, action)

    async def _document(
        self, request: schema.Search | schema.Open | schema.Find, options: SearchOptions, action: dict[str, Any]
    ) -> tuple[Document, int, int]:
        """The document to show, its first line, and how many lines (-1: as many as fit). Fills in `action`."""
        match request:
            case schema.Search():
                return await self._search(request, options, action), 0, -1
            case schema.Open():
                document, first = await self._open(request, options, action)
                return document, first, request.num_lines
            case schema.Find():
                return await self._find(request, action), 0, -1

    async def _search(self, request: schema.Search, options: SearchOptions, action: dict[str, Any]) -> Document:
        action |= {"type": "search", "query": request.query, "sources": []}
        hits = await self._in_time(self._backend.search(request.query, min(request.topn, MAX_RESULTS), options))
        if not hits:
            raise BrowserError("The search found nothing: try other words.")
        action["sources"] = [{"type": "url", "url": hit.url} for hit in hits]
        return await asyncio.to_thread(reader.read_hits, request.query, hits)

    async def _open(self, request: schema.Open, options: SearchOptions, action: dict[str, Any]) -> tuple[Document, int]:
        link, document = self._target(request)
        action |= {"type": "open_page", "url": link.url}
        if request.view_source or document is None:
            _check_allowed(link.url, options)
            page = await self._in_time(self._backend.fetch(link.url))
            _check_allowed(page.url, options)  # it may have led elsewhere
            read = reader.read_source if request.view_source else reader.read
            document = await asyncio.to_thread(read, page, self._limits.max_page_characters)
        action["url"] = document.url
        return document, request.loc if request.loc >= 0 else max(0, link.line - LINES_BEFORE)

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

    async def _find(self, request: schema.Find, action: dict[str, Any]) -> Document:
        document = self._stack.at(request.cursor)
        if document.kind not in (Kind.PAGE, Kind.SOURCE):
            raise BrowserError(f"`find` searches pages, and this is {document.kind.value}: open one first.")
        action |= {"type": "find_in_page", "url": document.url, "pattern": request.pattern}
        matches = await asyncio.to_thread(reader.read_matches, document, request.pattern)
        if matches is None:
            raise BrowserError(f"The page has no match for `{one_line(request.pattern, 100)}`.")
        return matches

    async def _in_time(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await work
        except TimeoutError:
            raise BrowserError(f"It took longer than {self._limits.seconds:g} s, and was given up.") from None


def _check_allowed(url: str, options: SearchOptions) -> None:
    if not options.allow(url):
        raise BrowserError("That page is on a domain that this search must not use: open one that a search found.")


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
