"""What was measured of fleets, and what the model makes of it, as blocks of docs/scaling.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.bench.fleet import JOURNALS, PRICES, RUN
from tests.bench.fleet.costs import Costs
from tests.bench.fleet.model import Fleet, Part, bottleneck, capacity, event_seconds, shares
from tests.bench.fleet.remedies import SIZES, ladder
from tests.bench.results import Results
from tests.bench.svg import lines
from tests.bench.tables import about, markdown, number, rows_of

Block = tuple[str, list[str], dict[str, str]]
"""Name, lines, and images by their names."""

PLOTTED = (1, 3, 10, 30, 100, 300, 1000)


def blocks(found: Mapping[str, Results]) -> Iterator[Block]:
    """Of those results that are there."""
    for name in (JOURNALS, RUN):
        if name in found:
            yield name, [about(found[name]), "", *rows_of(found[name])], {}
    if PRICES in found:
        costs = Costs.of(found[PRICES].rows)
        yield PRICES, [about(found[PRICES]), "", *_prices(found[PRICES])], {}
        yield "fleet-model", _model(costs), {"fleet-model": _plot(costs)}
        yield "fleet-remedies", _remedies(costs), {}


def _prices(results: Results) -> list[str]:
    rows = [(row["what"], number(row["price"]), number(row["each"]), row["unit"]) for row in results.rows]
    return markdown(("price of", "price", "for each", "unit"), rows)


def _model(costs: Costs) -> list[str]:
    """How busy each part is; the busiest is bold."""
    rows = []
    for workers in SIZES:
        fleet = replace(Fleet(), workers=workers)
        first, _ = bottleneck(fleet, costs)
        found = shares(fleet, costs)
        busy = [f"**{_percent(found[part])}**" if part is first else _percent(found[part]) for part in Part]
        rows.append((number(workers), number(fleet.chunks), first.value, *busy, _seconds(event_seconds(fleet, costs))))
    return markdown(("workers", "events/s", "first limit", *Part, "Postgres keeps up with an event every"), rows)


def _remedies(costs: Costs) -> list[str]:
    """How many workers each remedy allows, on top of those before it; then what a thousand workers ask for."""
    rows = []
    for what, fleet in ladder(Fleet()):
        most = capacity(fleet, costs)
        first, _ = bottleneck(replace(fleet, workers=most + 1), costs)
        found = shares(replace(fleet, workers=SIZES[-1]), costs)
        rows.append((what, number(most), first.value, *(_percent(found[part]) for part in Part)))
    return markdown(("remedy", "workers", "first limit", *Part), rows)


def _plot(costs: Costs) -> str:
    found = {n: shares(replace(Fleet(), workers=n), costs) for n in PLOTTED}
    parts = [part for part in Part if found[PLOTTED[0]][part]]
    series = {part.name.lower(): [(float(n), 100 * found[n][part]) for n in PLOTTED] for part in parts}
    return lines("How busy each part is", "workers", "%", series, logarithmic=True)


def _percent(share: float) -> str:
    if not share:
        return ""
    return f"{100 * share:,.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds != float("inf") else "never"
