"""Log probabilities of tokens, handed to the text that the tokens became.

A parser gives text without saying which tokens it is of: it holds back, and it drops markup. The texts of
the tokens themselves tell.
"""

from __future__ import annotations

from workers.engine.output_format import Json


class LogprobMatcher:
    def __init__(self) -> None:
        self._open: list[tuple[str, Json]] = []

    def add(self, text: str, logprob: Json) -> None:
        """A token that went to the parser with this text of it."""
        self._open.append((text, logprob))

    def drop(self) -> None:
        """What was open was not text."""
        self._open.clear()

    def take(self, said: str) -> tuple[Json, ...]:
        """Those of the tokens that became `said`; tokens before them were markup, tokens behind them stay."""
        whole = "".join(text for text, _ in self._open)
        start = max(whole.find(said), 0)
        end, place = start + len(said), 0
        taken, left = [], []
        for text, logprob in self._open:
            if place >= end:
                left.append((text, logprob))
            elif place >= start or place + len(text) > start:
                taken.append(logprob)
            place += len(text)
        self._open = left
        return tuple(taken)
