"""The checker notices each promise that is switched off in real processes."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.breaks import SHOWN_BY, plan_for
from tests.faults.driver import run
from tests.faults.plan import Plan
from tests.faults.report import Report

pytestmark = pytest.mark.long

RULE = {
    "fence": "only_owners_write_chunks",
    "claim": "transitions_are_legal",
    "publish-after-commit": "durable_before_visible",
    "publish-after-reconnect": "doorbells_arrive",
    "receive-after-reconnect": "doorbells_arrive",
    "line": "every_line_has_one_result",
    "write-once": "files_are_what_the_rows_say",
}
"""A promise, and the rule that must notice. Other rules may notice, too."""
KEPT = "all promises kept"
AT_ONCE = 4


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The report of each promise's plan without it; under KEPT that of all plans in one, with every promise kept."""
    plans = {KEPT: plan_for(*SHOWN_BY, broken=False)} | {promise: plan_for(promise) for promise in SHOWN_BY}
    return asyncio.run(_all(plans))


async def _all(plans: dict[str, Plan]) -> dict[str, Report]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(plan: Plan) -> Report:
        async with slots:
            return await run(plan)

    return dict(zip(plans, await asyncio.gather(*map(one, plans.values())), strict=True))


@pytest.mark.parametrize("promise", SHOWN_BY)
def test_the_checker_notices_a_promise_that_is_switched_off(promise: str, reports: dict[str, Report]) -> None:
    report = reports[promise]
    assert RULE[promise] in {violation.rule for violation in report.violations}, "\n".join(report.lines())


def test_the_same_plans_find_no_violation_if_all_promises_are_kept(reports: dict[str, Report]) -> None:
    report = reports[KEPT]
    assert report.ok, "\n".join(report.lines())
