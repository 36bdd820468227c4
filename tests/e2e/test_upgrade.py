"""A rolling upgrade to a version with another row layout and one column more, with work running, breaks no promise."""

from __future__ import annotations

import pytest

from tests.faults.driver import run
from tests.faults.plan import Plan

pytestmark = pytest.mark.long

KINDS = frozenset({"worker: SIGTERM", "queue: messages repeated", "pubsub: events repeated"})


async def test_a_rolling_upgrade_under_load_loses_repeats_and_garbles_nothing() -> None:
    """Old and new workers, maintenance and APIs share one database and one Redis; the faults' checker judges.

    It finds a claim of an old worker that lowers a row's layout, too.
    """
    report = await run(Plan(upgrade=True, faults=4, responses=40, workers=2, maintenances=1, flower=False, kinds=KINDS))
    assert report.ok, "\n".join(report.lines())
    assert report.faults["fleet: upgraded"] == 1
    assert report.upgraded > 0, "no new worker ran what an old process had accepted or begun"
