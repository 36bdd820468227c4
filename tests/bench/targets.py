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


_64, _16, _1 = (_cell(Mode.STREAM, concurrency) for concurrency in (64, 16, 1))
_POSTS, _FIRED = _cell(Mode.ENQUEUE, 16), _cell(Mode.FIRE, 16)

TARGETS = (
    Target("streaming at 64, against vllm serve", Metric.TOKENS, _64, Name.PEER, at_least=1.15),
    Target("streaming at 64, against bare vLLM", Metric.TOKENS, _64, Name.BARE, at_least=0.8),
    Target("streaming at 16, against vllm serve", Metric.TOKENS, _16, Name.PEER, at_least=1.0),
    Target("first token at 64, against vllm serve", Metric.TTFT_P50, _64, Name.PEER, at_most=0.5),
    Target("first token at 1, against vllm serve", Metric.TTFT_P50, _1, Name.PEER, at_most=1.0),
    Target("background POSTs under load, 16 clients", Metric.RESPONSES, _POSTS, Name.PEER, at_least=3.0),
    Target("background POSTs under load, 16 clients", Metric.POST_P99, _POSTS, at_most=50.0),
    Target("2,000 background responses", Metric.TOKENS, _FIRED, Name.PEER, at_least=1.15),
    Target("journal, pub/sub and SSE", Metric.TOKENS, TOO_FAST, at_least=20_000.0, results=PATH),
)


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
