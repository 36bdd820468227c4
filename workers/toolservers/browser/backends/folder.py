"""Serves a folder of HTML and text files as a small web: for tests, and for documents that never leave a machine.

The file `guide/start.html` is the page https://folder.test/guide/start.html, so links between the files work unchanged.
(`.test` is never a name on the Internet.) The next search sees what has changed in the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from workers.toolservers.browser.documents import Document, strip_links
from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.pages import Format, Hit, Page, SearchOptions
from workers.toolservers.browser.reader import read
from workers.toolservers.browser.web import decode

HOST = "folder.test"
FORMATS = {".html": Format.HTML, ".htm": Format.HTML, ".txt": Format.TEXT, ".md": Format.TEXT}
_WORD = re.compile(r"\w+")
_SUMMARY_CHARS = 240
_HEAD_LINES = 2
"""The first lines of a document are not the page's: an empty line, and the URL."""


@dataclass(frozen=True, slots=True)
class _Entry:
    changed: tuple[int, int]
    title: str
    words: frozenset[str]


class Folder:
    """Reads at most `page_bytes` of a file, and `page_characters` of its text."""

    def __init__(self, folder: Path, page_bytes: int, page_characters: int) -> None:
        self._folder = folder.resolve()
        self._page_bytes = page_bytes
        self._page_characters = page_characters
        self._index: dict[str, _Entry] = {}
        self._indexing = threading.Lock()

    async def search(self, query: str, topn: int, options: SearchOptions) -> list[Hit]:
        """All pages have one domain."""
        return await asyncio.to_thread(self._search, query, topn) if options.allow(f"https://{HOST}/") else []

    async def fetch(self, url: str) -> Page:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.netloc != HOST:
            raise BrowserError(f"There is no web here: only pages of https://{HOST}/ can be opened.")
        return await asyncio.to_thread(self._page, unquote(parts.path).lstrip("/"))

    def _search(self, query: str, topn: int) -> list[Hit]:
        self.refresh()
        wanted = _words_of(query)
        found = [(len(wanted & entry.words), name, entry.title) for name, entry in dict(self._index).items()]
        best = sorted((each for each in found if each[0]), key=lambda each: (-each[0], each[1]))[:topn]
        return [Hit(_url_of(name), title, self._summary(wanted, name)) for _, name, title in best]

    def refresh(self) -> int:
        """Reads the changed files; returns the number of pages. May be called from any thread."""
        with self._indexing:
            self._read_changes()
            return len(self._index)

    def _read_changes(self) -> None:
        names = dict(self._files())
        for name in self._index.keys() - names.keys():
            del self._index[name]
        for name, changed in names.items():
            if (known := self._index.get(name)) is None or known.changed != changed:
                self._index[name] = self._entry(name, changed)

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Names, each with a value that changes with the file. Does not follow links to folders."""
        for parent, folders, files in os.walk(self._folder):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            for file in files:
                name = (Path(parent) / file).relative_to(self._folder).as_posix()
                if (path := self._path(name)) is not None:
                    with contextlib.suppress(OSError):  # the file is gone by now
                        status = path.stat()
                        yield name, (status.st_mtime_ns, status.st_size)

    def _entry(self, name: str, changed: tuple[int, int]) -> _Entry:
        try:
            document = self._document(name)
        except BrowserError:
            return _Entry(changed, name, frozenset())
        return _Entry(changed, document.title, _words_of(f"{document.title}\n{_text_of(document)}"))

    def _summary(self, wanted: frozenset[str], name: str) -> str:
        """The page's text around the first of these words."""
        try:
            text = _text_of(self._document(name))
        except BrowserError:
            return ""
        first = next((word.start() for word in _WORD.finditer(text) if word.group().casefold() in wanted), 0)
        start = max(0, first - _SUMMARY_CHARS // 2)
        return ("…" if start else "") + text[start : start + _SUMMARY_CHARS]

    def _document(self, name: str) -> Document:
        return read(self._page(name), self._page_characters)

    def _page(self, name: str) -> Page:
        """The page of a file. Raises BrowserError if there is no such file."""
        missing = BrowserError(f"https://{HOST}/ has no such page.")
        if (path := self._path(name)) is None:
            raise missing
        try:
            with path.open("rb") as file:
                content = file.read(self._page_bytes)
        except OSError:
            raise missing from None
        title = "" if FORMATS[path.suffix.lower()] is Format.HTML else path.stem
        return Page(_url_of(name), decode(content, ""), FORMATS[path.suffix.lower()], title)

    def _path(self, name: str) -> Path | None:
        """The path of a file; None if it does not exist, is hidden, or lies outside the folder."""
        try:
            path = (self._folder / name).resolve()
            inside = path.relative_to(self._folder)
            fits = path.is_file() and path.suffix.lower() in FORMATS
        except (OSError, ValueError, RuntimeError):
            return None
        return path if fits and not any(part.startswith(".") for part in inside.parts) else None


def _words_of(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text))


def _url_of(name: str) -> str:
    return f"https://{HOST}/{quote(name)}"


def _text_of(document: Document) -> str:
    lines = document.lines[_HEAD_LINES:]
    return strip_links("".join(line if line.endswith(" ") else line + "\n" for line in lines))  # " ": it was wrapped
