"""What a worker costs the parts that workers share, and what fleets of 10 to 1,000 workers need.

journals.py and units.py measure prices. simulation.py runs fleets as large as this machine allows and compares them
with the model (model.py). pages.py writes what the model predicts for larger fleets into docs/scaling.md.
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
