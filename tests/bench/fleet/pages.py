"""What was measured of fleets, and what the model makes of it, as blocks of docs/internals/scaling.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.bench.fleet import JOURNALS, PRICES
from tests.bench.fleet.costs import Costs
from tests.bench.fleet.model import Fleet, Part, bottleneck, capacity, ladder, shares
from tests.bench.results import Results
from tests.bench.tables import about, markdown, number, rows_of

SIZES = (10, 100, 1000)
"""Workers of the fleets that are looked at."""


def blocks(found: Mapping[str, Results]) -> Iterator[tuple[str, list[str]]]:
    """Name and lines of each block, of those results that are there."""
    if JOURNALS in found:
        yield JOURNALS, [about(found[JOURNALS]), "", *rows_of(found[JOURNALS])]
    if PRICES in found:
        costs = Costs.of(found[PRICES].rows)
        yield PRICES, [about(found[PRICES]), "", *_prices(found[PRICES])]
        yield "fleet-model", _model(costs)
        yield "fleet-remedies", _remedies(costs)


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
        rows.append((number(workers), number(fleet.chunks), first.value, *busy))
    return markdown(("workers", "events/s", "first limit", *Part), rows)


def _remedies(costs: Costs) -> list[str]:
    """How many workers each remedy allows, on top of those before it; then what a thousand workers ask for."""
    rows = []
    for what, fleet in ladder(Fleet()):
        most = capacity(fleet, costs)
        first, _ = bottleneck(replace(fleet, workers=most + 1), costs)
        found = shares(replace(fleet, workers=SIZES[-1]), costs)
        rows.append((what, number(most), first.value, *(_percent(found[part]) for part in Part)))
    return markdown(("remedy", "workers", "first limit", *Part), rows)


def _percent(share: float) -> str:
    if not share:
        return ""
    return f"{100 * share:,.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"
