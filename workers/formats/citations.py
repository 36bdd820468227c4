"""What a model cites: marks of gpt-oss's browser in its text -> annotations of type url_citation.

A model that was shown a page by the browser cites lines of that view as `【3†L8-L10】`: the cursor it was shown under,
and the lines. The mark stays in the text; behind the delta that ends it comes the annotation, whose indexes are those
of the mark in the message's text (characters; `end_index` is behind the last).

    call["sources"] = {"3": {"url": ..., "title": ..., "results": [{"url", "title", "lines": [4, 5]}, ...]}}

says what a cursor shows: one page, or (`results`, with no url of its own) the results of a search by their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol.events.deltas import Annotation, Delta, Text

Json = Mapping[str, Any]
Sources = Mapping[str, Json]
"""By cursor, as JSON has them: as text."""

_OPEN, _CLOSE = "【", "】"
_MARK = re.compile(r"【(?P<cursor>\d{1,9})†L(?P<first>\d{1,9})(?:-L?(?P<last>\d{1,9}))?】")
_LONGEST = 40
"""Characters of a mark."""


def sources_of(items: Iterable[Json]) -> dict[str, Json]:
    """What the cursors of these items' calls show; of one cursor, what it showed last."""
    found: dict[str, Json] = {}
    for item in items:
        found |= (item.get("call") or {}).get("sources") or {}
    return found


class Citations:
    """Puts annotations into one answer's deltas. A delta is never divided, so that nothing depends on batches
    as long as deltas come token by token."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._length = 0
        """Characters of the open message."""
        self._phase: str | None = None
        self._open = ""
        """The end of its text, from a mark's first character on."""

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        if not self._sources:
            return list(deltas)
        return [said for delta in deltas for said in self._step(delta)]

    def _step(self, delta: Delta) -> list[Delta]:
        if not isinstance(delta, Text):
            self._length, self._open = 0, ""
            return [delta]
        if delta.phase != self._phase:
            self._length, self._open, self._phase = 0, "", delta.phase
        return [delta, *self._read(delta.text)]

    def _read(self, text: str) -> list[Annotation]:
        start = self._length - len(self._open)
        self._length += len(text)
        seen = self._open + text
        found = [self._annotation(mark, start) for mark in _MARK.finditer(seen)]
        last = seen.rfind(_OPEN)
        begun = last >= 0 and _CLOSE not in seen[last:] and len(seen) - last < _LONGEST
        self._open = seen[last:] if begun else ""
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

    def _source(self, cursor: str, line: int) -> Json | None:
        """What was cited, where it has an address."""
        shown = self._sources.get(str(int(cursor)))
        if shown is None or shown.get("url"):
            return shown
        lines = ((result, result["lines"]) for result in shown.get("results") or () if result.get("url"))
        return next((result for result, (first, last) in lines if first <= line <= last), None)
