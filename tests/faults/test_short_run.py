"""A short run of the whole suite with every kind of process and request breaks no promise."""

from __future__ import annotations

import pytest

from tests.faults.driver import run
from tests.faults.plan import Plan


@pytest.mark.long
async def test_a_short_schedule_breaks_no_promise() -> None:
    report = await run(Plan(seed=3, faults=20, responses=40, batches=3, pause=0.6, keys=True, concurrency=4))
    assert report.ok, "\n".join(report.lines())
    assert report.faults.total() == 20
