"""Plots of comparisons."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bench.metrics import Metric, spread
from tests.bench.plan import Name
from tests.bench.results import Results
from tests.bench.svg import bars, shares
from tests.bench.targets import Verdict, verdicts


def reached(found: Mapping[str, Results]) -> dict[str, str]:
    """Each target's measured value as a share of the required one."""
    values = {}
    for each in verdicts(found):
        if each.measured is not None:
            values[f"{each.target.says} ({each.target.metric})"] = _share(each, each.measured.median)
    return {"targets": shares("Reached of the target (1: met)", values)} if values else {}


def streaming(results: Results) -> dict[str, str]:
    """Short prompts, streamed: tokens/s, and the time to the first one."""
    cells = [cell for cell in results.cells() if cell.startswith("stream ") and len(cell.split()) == 2]
    if not cells:
        return {}
    labels = [f"{cell.split()[1]} streams" for cell in cells]
    plotted = {"throughput": ("Streaming", Metric.TOKENS), "first-token": ("The first token", Metric.TTFT_P50)}
    images = {}
    for name, (title, metric) in plotted.items():
        series = {str(who): [_median(results, who, cell, metric) for cell in cells] for who in Name}
        images[name] = bars(title, metric.value, labels, series)
    return images


def _share(verdict: Verdict, median: float) -> float:
    target = verdict.target
    return median / target.at_least if target.at_least else (target.at_most or 0.0) / median


def _median(results: Results, who: str, cell: str, metric: Metric) -> float | None:
    found = spread(results, who, cell, metric)
    return None if found is None else found.median
