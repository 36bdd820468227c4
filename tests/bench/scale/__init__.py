"""How cost grows: one module for each question, each to be run alone by its name.

A module has `SAYS` (the question), `SIZES`, `rows` (measures; one row of columns for each size) and `plots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.bench.contenders.longhaul import Variant
from tests.bench.plan import Name
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Say
from tests.bench.scale import chain, fed, long, memory, queued, readers, stored, streams
from tests.bench.scale.setup import MeasurementFailed, Setup, row_text
from tests.support.services import open_folder

__all__ = ["MEASUREMENTS", "PREFIX", "MeasurementFailed", "measure"]

PREFIX = "scale-"
MEASUREMENTS: dict[str, ModuleType] = {
    "streams": streams,
    "readers": readers,
    "stored": stored,
    "chain": chain,
    "long": long,
    "queued": queued,
    "fed": fed,
    "memory": memory,
}


async def measure(
    name: str,
    sizes: Sequence[int] | None,
    say: Say,
    label: str = Name.LONGHAUL,
    variant: Variant | None = None,
    build: Path = BUILD,
) -> Results:
    """One measurement; what there is is saved after each row. `sizes`: in place of its own."""
    module = MEASUREMENTS[name]
    stem = PREFIX + name if label == Name.LONGHAUL else f"{PREFIX}{name}@{label}"
    results = Results.begin(stem, build, says=module.SAYS)
    say(f"{name}: {module.SAYS}")
    with open_folder() as folder:
        async for row in module.rows(Setup(folder, variant or Variant()), sizes or module.SIZES):
            results.rows.append(row)
            results.save()
            say(f"  {row_text(row)}")
    return results
