"""Medians, quantiles and ratios: the little statistics that a few rounds allow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed. Raises ValueError where there is none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds; empty where nothing was timed."""
    return {name: round(1000 * quantile(seconds, share), 3) for name, share in QUANTILES.items() if seconds}


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and what it was drawn from."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None: there is nothing to draw from."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values), len(values))


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """The ratio of each round (number -> value) that both have: a slow moment of the machine hits both."""
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys()) if theirs[number]]
