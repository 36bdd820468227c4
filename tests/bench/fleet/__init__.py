"""What a worker costs the parts that workers share, and what fleets of 10 to 1,000 workers need.

journals.py and units.py measure prices. pages.py writes them, and what the model (model.py) makes of them, into
docs/internals/scaling.md.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.fleet import journals, units
from tests.bench.fleet.costs import Costs
from tests.bench.fleet.rig import started_rig
from tests.bench.processes import engines
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Say

__all__ = ["JOURNALS", "PRICES", "measure"]

JOURNALS, PRICES = "fleet-journals", "fleet-prices"


async def measure(say: Say, *, size: float = 1.0, build: Path = BUILD) -> dict[str, Results]:
    """All of it; `size` shrinks it, for tests."""
    results = {name: Results.begin(name, build) for name in (JOURNALS, PRICES)}
    async with started_rig(size) as rig:
        found = await units.measured(rig)
        found["bystander"] = await journals.bystander(rig)
        results[JOURNALS].rows = await journals.rows(rig)
    results[PRICES].rows = Costs(**(found | journals.lines(results[JOURNALS].rows))).rows()
    for each in results.values():
        each.disturbed = bool(engines())
        say(f"saved {each.save()}")
    return results
