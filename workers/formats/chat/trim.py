"""Takes away the line feeds that a chat template puts between reasoning, text and calls.

* Reasoning loses the line feeds around it.
* Text behind reasoning loses the line feeds before it.
* Text that is nothing but white space is no message, unless it is all that was said.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.protocol.events.deltas import Delta, Reasoning, Text


class Trim:
    def __init__(self) -> None:
        self._held: list[Text] = []
        """White space at the beginning of a message."""
        self._feeds = ""
        """Line feeds at the end of reasoning."""
        self._open: type | None = None
        """What was said last."""
        self._thought = False
        """The model reasoned, if only for a line feed, and has said no text since."""

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        return [said for delta in deltas for said in self._step(delta)]

    def flush(self) -> list[Delta]:
        held, self._held = self._held, []
        return list(held) if self._open is None and not self._thought else []

    def _step(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, Reasoning):
            return self._reasoning(delta.text)
        self._feeds = ""
        if isinstance(delta, Text):
            return self._text(delta)
        self._held.clear()
        self._open = type(delta)
        return [delta]

    def _reasoning(self, text: str) -> list[Delta]:
        self._held.clear()
        self._thought = True
        if self._open is not Reasoning:
            text = text.lstrip("\n")
        text, self._feeds = self._feeds + text, ""
        kept = text.rstrip("\n")
        self._feeds = text[len(kept) :] if self._open is Reasoning or kept else ""
        if not kept:
            return []
        self._open = Reasoning
        return [Reasoning(kept)]

    def _text(self, delta: Text) -> list[Delta]:
        if self._open is Text:
            return [delta]
        if not self._held and self._thought:
            delta = Text(delta.text.lstrip("\n"), delta.logprobs)
        if delta.text:
            self._held.append(delta)
        if not delta.text.strip():
            return []
        said, self._held, self._open, self._thought = self._held, [], Text, False
        return list(said)
