"""The tokens of the script and its contexts, renumbered; 0 stands for all others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

SIZE = 201088
"""Tokens of gpt-oss."""


class Vocabulary:
    def __init__(self, used: Iterable[int]) -> None:
        self.used = tuple(sorted(set(used)))
        self._indexes = {token: index + 1 for index, token in enumerate(self.used)}

    def __len__(self) -> int:
        return len(self.used) + 1

    @property
    def rest(self) -> float:
        """The logit of all the unused tokens together; each of them has logit 0."""
        return math.log(SIZE - len(self.used))

    def reduced(self, tokens: Sequence[int]) -> list[int]:
        return [self._indexes.get(token, 0) for token in tokens]
