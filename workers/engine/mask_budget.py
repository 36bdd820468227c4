"""The budget of an engine's time for the masks of grammars.

An engine computes a mask for each request with a grammar at each token, while all its requests wait. So all masks of a
token share one budget. A request holds what its grammar took in the probe's walk (`grammar_walk.py`), and waits until
that is free. A grammar may get dearer than any walk showed: then the engine ends its request (`to_end`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.bounds import Bound
from app.heavy import PROJECT

BUDGET_SECONDS = 0.03
"""CPU time for all masks of a token, and so for one. With 150,000 tokens, ordinary schemas take 2 ms, and simple custom
grammars 10; what holds up an engine takes 150 and more."""
FREE_SECONDS = 0.0025
"""The time of each request's mask that is not counted."""
FREE_BYTES = 2**20
MEAN_TOKENS = 8
"""A cost is a mean that forgets what was so many tokens ago: a single token says little, and growth shows at once."""


def mean_after(mean: float, seconds: float) -> float:
    """The mean once another token took so long."""
    return mean + (seconds - mean) / MEAN_TOKENS


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a grammar for the engine."""

    seconds: float = 0.0
    """Seconds for a token's mask, at the dearest place of a walk."""
    size: int = 0
    """Bytes, compiled."""


class MaskBudget:
    """The holdings of the running requests' grammars, by project (app/bounds.py)."""

    def __init__(self, most_bytes: int) -> None:
        self.masks = Bound("masks", _microseconds(BUDGET_SECONDS), _microseconds(FREE_SECONDS), unit="microseconds of ")
        self.compiled = Bound("compiled grammars", most_bytes, FREE_BYTES, unit="bytes of ")

    @asynccontextmanager
    async def held(self, cost: Cost) -> AsyncIterator[None]:
        """Holds the cost, once there is room."""
        project = PROJECT.get()
        with await self.masks.wait(project, _microseconds(cost.seconds)), await self.compiled.wait(project, cost.size):
            yield


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


@dataclass(frozen=True, slots=True)
class Running:
    """A running request with a grammar, as the engine sees it."""

    id: str
    project: str | None
    promised: float
    """Seconds for a mask, by the walk."""
    seconds: float
    """Seconds that a mask took lately."""

    @property
    def counted(self) -> float:
        return max(0.0, self.seconds - FREE_SECONDS)

    @property
    def is_dear(self) -> bool:
        """Whether it takes more than the walk showed. Twice as much is chance."""
        return self.seconds > max(2 * self.promised, FREE_SECONDS)


def to_end(running: Sequence[Running]) -> list[str]:
    """The requests that must end for the budget to hold: dear ones alone, and of the project that takes most first."""
    left, ended = {each.id: each for each in running}, list[str]()
    while sum(each.counted for each in left.values()) > BUDGET_SECONDS:
        taken: dict[str | None, float] = defaultdict(float)
        for each in left.values():
            taken[each.project] += each.counted
        dear = [each for each in left.values() if each.is_dear]
        if not dear:
            break
        dearest = max(dear, key=lambda each: (taken[each.project], each.seconds))
        ended.append(dearest.id)
        del left[dearest.id]
    return ended
