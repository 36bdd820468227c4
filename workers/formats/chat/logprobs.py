"""Matches tokens' log probabilities with the text that the tokens became.

An output parser returns text without its tokens: it holds text back and drops markers. The texts of the tokens tell
which of them the returned text consists of.
"""

from __future__ import annotations

from app.protocol.types import Json


class LogprobMatcher:
    """The tokens whose text the output parser has not returned yet."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Json]] = []

    def add(self, text: str, logprob: Json) -> None:
        """A token whose text the parser got."""
        self._open.append((text, logprob))

    def drop(self) -> None:
        """Forgets the tokens so far: they were no text."""
        self._open.clear()

    def take(self, text: str) -> tuple[Json, ...]:
        """The log probabilities of the tokens of `text`. Earlier tokens were markers; later ones are kept."""
        whole = "".join(part for part, _ in self._open)
        start = max(whole.find(text), 0)
        end, position = start + len(text), 0
        taken, left = [], []
        for part, logprob in self._open:
            if position >= end:
                left.append((part, logprob))
            elif position >= start or position + len(part) > start:
                taken.append(logprob)
            position += len(part)
        self._open = left
        return tuple(taken)
