"""The checker notices: each promise is switched off in real processes, and a short run has to find it."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.breaks import SHOWN_BY, plan_for
from tests.faults.driver import run
from tests.faults.plan import Plan
from tests.faults.report import Report

RULE = {
    "fence": "every_chunk_is_its_owners",
    "claim": "a_life_keeps_the_law",
    "publish-after-commit": "durable_before_visible",
    "publish-after-reconnect": "doorbells_ring",
    "receive-after-reconnect": "doorbells_ring",
}
"""A promise, and the rule that cannot but notice. Others may, as luck has it."""
KEPT = "all are kept"
AT_ONCE = 4


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """What became of each promise's plan without it, and of all plans in one with all promises kept."""
    plans = {KEPT: plan_for(*SHOWN_BY, broken=False)} | {promise: plan_for(promise) for promise in SHOWN_BY}
    return asyncio.run(_all(plans))


async def _all(plans: dict[str, Plan]) -> dict[str, Report]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(plan: Plan) -> Report:
        async with places:
            return await run(plan)

    return dict(zip(plans, await asyncio.gather(*map(one, plans.values())), strict=True))


@pytest.mark.parametrize("promise", SHOWN_BY)
def test_the_checker_notices_a_promise_that_is_switched_off(promise: str, reports: dict[str, Report]) -> None:
    report = reports[promise]
    assert RULE[promise] in {violation.rule for violation in report.violations}, "\n".join(report.lines())


def test_the_same_plans_find_nothing_where_all_promises_are_kept(reports: dict[str, Report]) -> None:
    report = reports[KEPT]
    assert report.ok, "\n".join(report.lines())
