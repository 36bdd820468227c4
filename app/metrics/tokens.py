"""When an engine's tokens come. A worker notes each of thousands a second, so this counts for itself.

prometheus_client's own histogram takes a lock and walks its buckets: 0.7 us for each delta, and another 0.25 us for a
counter. 13,000 tokens a second would cost 1 % of a core more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class TokenMetrics(Collector):
    """The tokens of one worker. It counts on the worker's loop, and is read from others' threads."""

    def __init__(self, model: str, bounds: Sequence[float]) -> None:
        self._model = model
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of gaps by their bucket, the one without a bound last."""
        self.seconds = 0.0
        self.tokens = 0

    def note_gap(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        gaps = HistogramMetricFamily(
            "longhaul_inter_token_seconds",
            "Seconds from one delta of the engine to the next within a turn, divided by its tokens.",
            labels=("model",),
        )
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self.counts)), strict=True))
        gaps.add_metric((self._model,), buckets, self.seconds)
        tokens = CounterMetricFamily(
            "longhaul_generated_tokens", "Tokens that the engine generated.", labels=("model",)
        )
        tokens.add_metric((self._model,), self.tokens)
        yield from (gaps, tokens)


class TokenTimes:
    """When the tokens of one turn come."""

    __slots__ = ("_first", "_last", "_metrics", "_since_insert")

    def __init__(
        self, metrics: TokenMetrics, first: Histogram | None, since_insert: Callable[[], float] | None
    ) -> None:
        self._metrics = metrics
        self._first = first
        self._since_insert = since_insert
        self._last = 0.0

    def note(self, tokens: int) -> None:
        """The engine gave so many tokens."""
        if not tokens:
            return
        now, metrics = perf_counter(), self._metrics
        if self._last:
            metrics.note_gap((now - self._last) / tokens)
        elif self._first is not None and self._since_insert is not None:
            self._first.observe(self._since_insert())
        self._last = now
        metrics.tokens += tokens


class Untimed(TokenTimes):
    """Of a worker whose metrics nobody reads."""

    def __init__(self) -> None:
        pass

    def note(self, tokens: int) -> None:
        pass


UNTIMED = Untimed()
