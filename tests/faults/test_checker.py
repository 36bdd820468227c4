"""The checker notices: each promise is switched off in real processes, and a short run has to find it."""

from __future__ import annotations

import asyncio

from tests.faults.driver import run
from tests.faults.plan import Plan

NOTICED_BY = {
    "fence": "worker: stopped beyond its lease",
    "claim": "queue: messages repeated",
    "publish": "network: worker and postgres, beyond its lease",
}
"""A promise, and the fault under which its absence shows."""


def plan(broken: str) -> Plan:
    return Plan(
        seed=11,
        faults=6,
        responses=20,
        at_once=16,
        apis=1,
        workers=2,
        maintenances=1,
        flower=False,
        kinds=frozenset({NOTICED_BY[broken]}),
        broken=broken,
        settle_seconds=5,
    )


async def test_the_checker_notices_every_promise_that_is_switched_off() -> None:
    reports = await asyncio.gather(*(run(plan(broken)) for broken in NOTICED_BY))
    noticed = {broken: len(report.violations) for broken, report in zip(NOTICED_BY, reports, strict=True)}
    assert all(noticed.values()), noticed
