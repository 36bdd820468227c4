"""Removes the line feeds that a chat template puts between reasoning, text and calls.

* Reasoning loses the line feeds around it.
* Text after reasoning loses the line feeds before it.
* Text of nothing but white space is no message, unless the answer has nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.protocol.events.deltas import Delta, Reasoning, Text


class Trim:
    """Trims the deltas of one answer."""

    def __init__(self) -> None:
        self._held: list[Text] = []
        """White space at the beginning of a message."""
        self._line_feeds = ""
        """Line feeds at the end of reasoning."""
        self._last: type | None = None
        """The kind of the last delta that came out."""
        self._reasoned = False
        """The model reasoned, if only a line feed, and wrote no text since."""

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        return [kept for delta in deltas for kept in self._trim(delta)]

    def flush(self) -> list[Delta]:
        held, self._held = self._held, []
        return list(held) if self._last is None and not self._reasoned else []

    def _trim(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, Reasoning):
            return self._trim_reasoning(delta.text)
        self._line_feeds = ""
        if isinstance(delta, Text):
            return self._trim_text(delta)
        self._held.clear()
        self._last = type(delta)
        return [delta]

    def _trim_reasoning(self, text: str) -> list[Delta]:
        self._held.clear()
        self._reasoned = True
        if self._last is not Reasoning:
            text = text.lstrip("\n")
        text, self._line_feeds = self._line_feeds + text, ""
        kept = text.rstrip("\n")
        self._line_feeds = text[len(kept) :] if self._last is Reasoning or kept else ""
        if not kept:
            return []
        self._last = Reasoning
        return [Reasoning(kept)]

    def _trim_text(self, delta: Text) -> list[Delta]:
        if self._last is Text:
            return [delta]
        if not self._held and self._reasoned:
            delta = Text(delta.text.lstrip("\n"), delta.logprobs)
        if delta.text:
            self._held.append(delta)
        if not delta.text.strip():
            return []
        kept, self._held, self._last, self._reasoned = self._held, [], Text, False
        return list(kept)
