"""The bounds of a process: what is held of each, how much that may be, and how often something did not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.bounds import Bound


class BoundsCollector(Collector):
    """Reads the bounds at each scrape."""

    def __init__(self, bounds: Sequence[Bound] = ()) -> None:
        self._bounds = bounds

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("longhaul_bound_held", "What is held of a bound.", labels=("bound",))
        size = GaugeMetricFamily("longhaul_bound_size", "How much may be held of a bound.", labels=("bound",))
        held_bytes = GaugeMetricFamily("longhaul_bound_held_bytes", "Bytes held of a bound.", labels=("bound",))
        size_bytes = GaugeMetricFamily(
            "longhaul_bound_size_bytes", "How many bytes may be held of a bound.", labels=("bound",)
        )
        refusals = CounterMetricFamily(
            "longhaul_bound_refusals",
            "How often something did not fit into a bound: its total, or a project's share of it.",
            labels=("bound", "reason"),
        )
        for bound in self._bounds:
            name = (bound.what.lower().replace(" ", "_"),)
            (held_bytes if bound.unit else held).add_metric(name, bound.held)
            (size_bytes if bound.unit else size).add_metric(name, bound.total)
            for reason, count in bound.refusals.items():
                refusals.add_metric((*name, reason), count)
        yield from (held, size, held_bytes, size_bytes, refusals)
