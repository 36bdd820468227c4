"""A fleet: what a worker costs those that it shares with others, and what follows for ten, a hundred, a thousand.

Prices are measured (journals.py, units.py), fleets as large as this machine bears are run (simulation.py) beside what
the model (model.py) says of them, and docs/scaling.md says what it says of larger ones (pages.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.fleet import journals, simulation, units
from tests.bench.fleet.costs import Costs
from tests.bench.fleet.rig import started_rig
from tests.bench.fleet.simulation import SHAPES, Shape
from tests.bench.processes import engines
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Say
from tests.bench.scale.setup import row_text

__all__ = ["JOURNALS", "PRICES", "RUN", "measure"]

JOURNALS, PRICES, RUN = "fleet-journals", "fleet-prices", "fleet-run"


async def measure(
    say: Say, *, size: float = 1.0, shapes: Sequence[Shape] = SHAPES, build: Path = BUILD
) -> dict[str, Results]:
    """All of it; what there is is saved as it comes. `size` shrinks it, for tests."""
    names = (JOURNALS, PRICES, RUN)
    results = {name: Results.begin(name, build) for name in names}
    for each in results.values():
        each.disturbed = bool(engines())
    async with started_rig(size) as place:
        found = await units.measured(place)
        found["bystander"] = await journals.bystander(place)
        for row in await journals.rows(place):
            results[JOURNALS].rows.append(row)
            say(f"  {row_text(row)}")
        costs = Costs(**(found | journals.lines(results[JOURNALS].rows)))
        results[PRICES].rows = costs.rows()
        for price in results[PRICES].rows:
            say(f"  {row_text(price)}")
        for name in (JOURNALS, PRICES):
            results[name].save()
        for shape in shapes:
            say(f"running {asdict(shape)}")
            results[RUN].rows.append(await simulation.row(place, costs, shape))
            results[RUN].save()
            say(f"  {row_text(results[RUN].rows[-1])}")
    return results
