"""What a sample says: one number for each metric, and the same of two contenders as a ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from tests.bench.load import Time
from tests.bench.numbers import Spread, ratios
from tests.bench.processes import Role
from tests.bench.results import Results, Sample


class Metric(StrEnum):
    TOKENS = "tokens/s"
    IN_TIME = "tokens/s in time"
    """Tokens of streams whose first text comes within 0.2 s, and then a token every 0.02 s at the mean."""
    RESPONSES = "responses/s"
    TTFT_P50 = "TTFT p50 (ms)"
    TTFT_P95 = "TTFT p95 (ms)"
    TTFT_P99 = "TTFT p99 (ms)"
    INTER_P50 = "inter-token p50 (ms)"
    INTER_P95 = "inter-token p95 (ms)"
    GAP_P95 = "gap p95 (ms)"
    POST_P50 = "POST p50 (ms)"
    POST_P99 = "POST p99 (ms)"
    POST_CPU = "API CPU (ms/POST)"
    CPU = "CPU s"
    """CPU seconds of all processes but the client, per 1,000 tokens."""
    FRAMES = "event bytes"
    """Per token."""
    WAL = "WAL bytes"
    """Per token."""


def _time(time: Time, quantile: str) -> Callable[[Sample], float | None]:
    return lambda sample: sample.measured.figures.times.get(time.value, {}).get(quantile)


def _per_second(count: Callable[[Sample], float]) -> Callable[[Sample], float | None]:
    return lambda sample: count(sample) / sample.measured.figures.seconds


def _per_token(count: Callable[[Sample], float | None]) -> Callable[[Sample], float | None]:
    def per_token(sample: Sample) -> float | None:
        total, tokens = count(sample), sample.measured.figures.tokens
        return total / tokens if total and tokens else None

    return per_token


_VALUES: Mapping[Metric, Callable[[Sample], float | None]] = {
    Metric.TOKENS: _per_second(lambda sample: sample.measured.figures.tokens),
    Metric.IN_TIME: _per_second(lambda sample: sample.measured.figures.tokens_in_time),
    Metric.RESPONSES: _per_second(lambda sample: sample.measured.figures.ok),
    Metric.TTFT_P50: _time(Time.TTFT, "p50"),
    Metric.TTFT_P95: _time(Time.TTFT, "p95"),
    Metric.TTFT_P99: _time(Time.TTFT, "p99"),
    Metric.INTER_P50: _time(Time.INTER_TOKEN, "p50"),
    Metric.INTER_P95: _time(Time.INTER_TOKEN, "p95"),
    Metric.GAP_P95: _time(Time.GAP, "p95"),
    Metric.POST_P50: _time(Time.POST, "p50"),
    Metric.POST_P99: _time(Time.POST, "p99"),
    Metric.POST_CPU: lambda sample: 1000 * sample.measured.cpu.get(Role.API, 0.0) / max(1, sample.measured.figures.ok),
    Metric.CPU: _per_token(lambda sample: 1000 * sum(sample.measured.cpu.values())),
    Metric.FRAMES: _per_token(lambda sample: sample.measured.figures.frame_bytes),
    Metric.WAL: _per_token(lambda sample: sample.measured.wal_bytes),
}


def value(sample: Sample, metric: Metric) -> float | None:
    """None: this sample does not say."""
    found = _VALUES[metric](sample)
    return found or None


def by_round(results: Results, contender: str, cell: str, metric: Metric) -> dict[int, float]:
    found = {sample.round: value(sample, metric) for sample in results.of(contender, cell)}
    return {number: number_value for number, number_value in found.items() if number_value is not None}


def spread(results: Results, contender: str, cell: str, metric: Metric) -> Spread | None:
    return Spread.of(list(by_round(results, contender, cell, metric).values()))


def ratio(results: Results, ours: str, theirs: str, cell: str, metric: Metric) -> Spread | None:
    """The median of each round's ratio."""
    pair = (by_round(results, contender, cell, metric) for contender in (ours, theirs))
    return Spread.of(ratios(*pair))


def cpu_by_role(results: Results, contender: str, cell: str) -> dict[str, float]:
    """Seconds per 1,000 tokens: medians."""
    found: dict[str, list[float]] = {}
    for sample in results.of(contender, cell):
        if sample.measured.figures.tokens:
            for role, seconds in sample.measured.cpu.items():
                found.setdefault(role, []).append(1000 * seconds / sample.measured.figures.tokens)
    medians = {role: Spread.of(values) for role, values in found.items()}
    return {role: median.median for role, median in medians.items() if median is not None}
