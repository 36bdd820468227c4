"""Stop strings in decoded text: within a token or across tokens; the text after one is dropped.

Of several stop strings, the one that is complete first counts. Only text that may still become a stop string is held
back. A token comes out with the first piece of its text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class TokenKind(Enum):
    TEXT = "text"
    MARKER = "marker"
    """May mark reasoning or a call: its text is never divided."""
    END = "end"
    """Ends a turn: it is no text, and parsers do not get it."""


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    kind: TokenKind = TokenKind.TEXT
    text: str = ""
    logprob: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Decoded text, and the token that begins with it."""

    text: str
    token: Token | None = None


class StopStrings:
    """`keep`: the stop string is part of the text."""

    def __init__(self, stops: Sequence[str] = (), *, keep: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._keep = keep
        self._held: deque[Piece] = deque()
        self.found = False

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def feed(self, piece: Piece, *, exempt: bool = False) -> list[Piece]:
        """The pieces that are certain by now. `exempt`: text up to here is no part of a stop string."""
        if not self._stops:
            return [piece]
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        if exempt:
            return self.flush()
        end = self._stop_end(text)
        if end is None:
            return self._release(len(text) - self._partial_stop(text))
        self.found = True
        released = self._release(end)
        self._held.clear()
        return released

    def flush(self) -> list[Piece]:
        """The pieces that were held back."""
        held = list(self._held)
        self._held.clear()
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

    def _release(self, length: int) -> list[Piece]:
        released = []
        while self._held and len(self._held[0].text) <= length:
            piece = self._held.popleft()
            length -= len(piece.text)
            released.append(piece)
        if self._held and length and not _is_indivisible(self._held[0]):
            cut = self._held.popleft()
            released.append(Piece(cut.text[:length], cut.token))
            self._held.appendleft(Piece(cut.text[length:]))
        return released


def _is_indivisible(piece: Piece) -> bool:
    return piece.token is not None and piece.token.kind is TokenKind.MARKER
