"""How far work in windows rises in the order of its queue.

Work in a window has a deadline, and time. It is sent when nothing else waits, the nearest deadline first. Its pressure
is the part of what its project can get that it needs, from now on, to be in time. As its slack shrinks the pressure
grows, and the work rises: it takes a part of its project's share. Other projects keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.scheduling.order import WINDOW_WEIGHT, Flow, tier_of

RISES_AT = 0.25
"""The pressure at which work in windows begins to rise. What comes meanwhile, and is due before, is not known yet, and
a share may halve: with one half, work that fits failed (docs/internals/decisions/windows.md)."""
RISEN_AT = 0.5
"""The pressure from which it may take its project's whole share."""
MARGIN = 2.0
"""Multiple of the time that a response takes: some take longer than the mean."""
SPEED = 20.0
"""Tokens a second of one response, until the first ones have been measured."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Work of one flow that is due at about the same time."""

    seconds: float
    """Seconds until the flow's work is due."""
    tokens: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The mean of what one response of a flow took of late."""

    seconds: float
    tokens: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 and self.tokens > 0 else SPEED


def part_of(demands: Sequence[Demand], rate: float, lead_seconds: float) -> float:
    """The part of its project's share that work in windows takes; 0: it waits until nothing else does.

    `rate` is what its project can get, in tokens a second. What is due within `lead_seconds` cannot be in time.
    """
    risen = (pressure(demands, rate, lead_seconds) - RISES_AT) / (RISEN_AT - RISES_AT)
    return min(max(risen, 0.0), 1.0)


def pressure(demands: Sequence[Demand], rate: float, lead_seconds: float) -> float:
    """The part of `rate` that is needed until some deadline: of the one that needs most."""
    needed, tokens = 0.0, 0.0
    for each in sorted(demands, key=lambda demand: demand.seconds):
        if (left := each.seconds - lead_seconds) > 0:
            tokens += each.tokens
            needed = max(needed, tokens / left / rate if rate > 0 else 1.0)
    return needed


def share_of(flow: Flow, others: Iterable[Flow]) -> float:
    """The part of its queue that the project of a flow in windows can get, beside the others in line."""
    weights: dict[str, float] = {}
    for other in others:
        if other.project != flow.project:
            weight = tier_of(other.priority) * other.project_weight
            weights[other.project] = max(weight, weights.get(other.project, 0.0))
    own = WINDOW_WEIGHT * flow.project_weight
    return own / (own + sum(weights.values()))
