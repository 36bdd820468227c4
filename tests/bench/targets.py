"""The targets as data, and whether they are met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.bench.load import Mode
from tests.bench.metrics import Metric, ratio, spread
from tests.bench.numbers import Spread
from tests.bench.plan import Cell, Name
from tests.bench.results import Results

PATH = "path"
UNBOUND = "unbound"
"""The cell of the path's results in which the scripted engine has no rate, and each event a chunk of its own."""
TOO_FAST = "too fast"
"""... in which it has one that is too much."""


@dataclass(frozen=True, slots=True)
class Target:
    """`metric` of Longhaul in a cell, as it is or as a ratio to another contender's."""

    says: str
    metric: Metric
    cell: str
    against: Name | None = None
    at_least: float | None = None
    at_most: float | None = None
    results: str = "run"
    """Which results it is about."""

    @property
    def required(self) -> str:
        unit = " x" if self.against else ""
        return f"≥ {self.at_least:,g}{unit}" if self.at_least is not None else f"≤ {self.at_most:,g}{unit}"

    def met(self, median: float) -> bool:
        low, high = self.at_least, self.at_most
        return (low is None or median >= low) and (high is None or median <= high)


def _cell(mode: Mode, concurrency: int) -> str:
    return str(Cell(mode, concurrency))


_POSTS, _FIRED = _cell(Mode.ENQUEUE, 16), _cell(Mode.FIRE, 16)
_STREAMS = {16: 1.15, 64: 1.3, 256: 1.35}
_ARRIVALS = _cell(Mode.ARRIVE, 38)
_ARRIVED = {Metric.TTFT_P50: 1.2, Metric.TTFT_P95: 0.8, Metric.TTFT_P99: 0.6}

TARGETS = (
    *(
        Target(f"{count} streams", Metric.TOKENS, _cell(Mode.STREAM, count), Name.PEER, at_least=ratio)
        for count, ratio in _STREAMS.items()
    ),
    *(
        Target("streams that arrive at random, 38 a second", metric, _ARRIVALS, Name.PEER, at_most=ratio)
        for metric, ratio in _ARRIVED.items()
    ),
    Target("streams that arrive at random, 38 a second", Metric.IN_TIME, _ARRIVALS, Name.PEER, at_least=1.2),
    Target("background POSTs under load, 16 clients", Metric.RESPONSES, _POSTS, Name.PEER, at_least=3.0),
    Target("background POSTs under load, 16 clients", Metric.POST_P99, _POSTS, at_most=50.0),
    Target("2,000 background responses of 64 tokens", Metric.TOKENS, _FIRED, Name.PEER, at_least=1.1),
    Target("journal, pub/sub and SSE", Metric.TOKENS, TOO_FAST, at_least=40_000.0, results=PATH),
)
"""Ratios are to `vllm serve`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`measured` is None where it was not."""

    target: Target
    measured: Spread | None

    @property
    def met(self) -> bool | None:
        return None if self.measured is None else self.target.met(self.measured.median)


def verdicts(found: Mapping[str, Results], ours: str = Name.LONGHAUL) -> list[Verdict]:
    """One for each target, in their order; `found` are results by name."""
    return [Verdict(target, _measured(found.get(target.results), target, ours)) for target in TARGETS]


def _measured(results: Results | None, target: Target, ours: str) -> Spread | None:
    if results is None:
        return None
    if target.against is None:
        return spread(results, ours, target.cell, target.metric)
    return ratio(results, ours, target.against, target.cell, target.metric)
