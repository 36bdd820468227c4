"""Citations of pages that the browser showed, as annotations of type url_citation.

A model that read a page cites its lines as `【3†L8-L10】`: the page's cursor and the lines. The mark stays in the text;
the annotation follows the delta that ends the mark. Its indexes are the mark's position in the message's text, in
characters; `end_index` is exclusive.

    call["sources"] = {"3": {"url": ..., "title": ..., "results": [{"url", "title", "lines": [4, 5]}, ...]}}

names what a cursor shows: one page, or the results of a search by their lines (`results`, without a url of its own).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol.events.deltas import Annotation, Delta, Text

Source = Mapping[str, Any]
Sources = Mapping[str, Source]
"""By cursor; JSON keys are strings."""

_OPEN, _CLOSE = "【", "】"
_MARK = re.compile(r"【(?P<cursor>\d{1,9})†L(?P<first>\d{1,9})(?:-L?(?P<last>\d{1,9}))?】")
_MAX_MARK = 40
"""The most characters of a mark."""


def sources_of(items: Iterable[Mapping[str, Any]]) -> dict[str, Source]:
    """What the cursors of these items' calls show; for each cursor, what it showed last."""
    found: dict[str, Source] = {}
    for item in items:
        found |= (item.get("call") or {}).get("sources") or {}
    return found


class Citations:
    """Adds annotations to one answer's deltas. It never divides a delta, so with deltas token by token the result does
    not depend on batches."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._length = 0
        """Characters of the open message."""
        self._phase: str | None = None
        self._open = ""
        """The end of its text, from the first character of an unfinished mark."""

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        if not self._sources:
            return list(deltas)
        return [annotated for delta in deltas for annotated in self._annotate(delta)]

    def _annotate(self, delta: Delta) -> list[Delta]:
        if not isinstance(delta, Text):
            self._length, self._open = 0, ""
            return [delta]
        if delta.phase != self._phase:
            self._length, self._open, self._phase = 0, "", delta.phase
        return [delta, *self._read(delta.text)]

    def _read(self, text: str) -> list[Annotation]:
        start = self._length - len(self._open)
        self._length += len(text)
        text = self._open + text
        found = [self._annotation(mark, start) for mark in _MARK.finditer(text)]
        last = text.rfind(_OPEN)
        unfinished = last >= 0 and _CLOSE not in text[last:] and len(text) - last < _MAX_MARK
        self._open = text[last:] if unfinished else ""
        return [annotation for annotation in found if annotation is not None]

    def _annotation(self, mark: re.Match[str], start: int) -> Annotation | None:
        source = self._source(mark["cursor"], int(mark["first"]))
        if source is None:
            return None
        return Annotation(
            {
                "type": "url_citation",
                "start_index": start + mark.start(),
                "end_index": start + mark.end(),
                "url": source["url"],
                "title": source.get("title") or source["url"],
            }
        )

    def _source(self, cursor: str, line: int) -> Source | None:
        """The cited page or result; None if it is unknown or has no URL."""
        shown = self._sources.get(str(int(cursor)))
        if shown is None or shown.get("url"):
            return shown
        lines = ((result, result["lines"]) for result in shown.get("results") or () if result.get("url"))
        return next((result for result, (first, last) in lines if first <= line <= last), None)
