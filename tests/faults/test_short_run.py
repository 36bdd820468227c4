"""A short run of the whole suite, with every kind of process and request, breaks no promise."""

from __future__ import annotations

import pytest

from tests.faults.driver import run
from tests.faults.plan import Plan

KINDS = frozenset(
    {
        "worker: kill -9",
        "worker: SIGTERM to its control group",
        "engine: dies of a request",
        "api: kill -9",
        "maintenance: kill -9",
        "valkey: killed",
        "valkey: password changed",
        "postgres: failed over",
        "postgres: killed",
        "postgres: sessions terminated",
        "queue: messages repeated",
        "batch: worker killed with its lines",
        "server: kill -9",
        "server: hangs",
        "pubsub: events repeated",
        "network: worker and postgres, beyond its lease",
        "network: api and valkey",
        "network: worker and postgres, slow",
    }
)
"""One of each sort, which `make faults` has all of."""


@pytest.mark.long
async def test_a_short_schedule_breaks_no_promise() -> None:
    plan = Plan(
        seed=3,
        faults=len(KINDS),
        kinds=KINDS,
        pause=0.6,
        responses=40,
        batches=3,
        keys=True,
        standby=True,
        concurrency=4,
        servers=1,
    )
    report = await run(plan)
    assert report.ok, "\n".join(report.lines())
    assert set(report.faults) == KINDS
