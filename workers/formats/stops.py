"""Stop strings in an answer's text, within a token or across tokens; the text after one is dropped.

They are for the answer: no stop string counts in thoughts, or in the line feeds between thoughts and text. None spans
two messages, or a message and a call.

Of several stop strings, the one that is complete first counts. Only text that may still become a stop string is held
back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """`keep`: the stop string is part of the text."""

    def __init__(self, stops: Sequence[str] = (), *, keep: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._keep = keep
        self._held = ""
        self.found = False

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def feed(self, text: str, *, exempt: bool = False) -> str:
        """The text that is certain by now. `exempt`: text up to here is no part of a stop string."""
        if self.found:
            return ""
        text, self._held = self._held + text, ""
        if not self._stops or exempt:
            return text
        end = self._stop_end(text)
        if end is not None:
            self.found = True
            return text[:end]
        certain = len(text) - self._partial_stop(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text that was held back."""
        held, self._held = self._held, ""
        return held

    def _stop_end(self, text: str) -> int | None:
        """The length of the text before (or with) the first complete stop string; None if there is none."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        end, start = min(found)
        return end if self._keep else start

    def _partial_stop(self, text: str) -> int:
        """The number of characters at the end that may begin a stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        sizes = range(longest, 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)
