"""The tokens that the script and its contexts use, numbered anew; 0 stands for every other one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

SIZE = 201088
"""Tokens of gpt-oss."""


class Vocabulary:
    def __init__(self, used: Iterable[int]) -> None:
        self.used = tuple(sorted(set(used)))
        self._places = {token: place + 1 for place, token in enumerate(self.used)}

    def __len__(self) -> int:
        return len(self.used) + 1

    @property
    def rest(self) -> float:
        """The logit of all the unused tokens together; each of them has logit 0."""
        return math.log(SIZE - len(self.used))

    def reduced(self, tokens: Sequence[int]) -> list[int]:
        return [self._places.get(token, 0) for token in tokens]
