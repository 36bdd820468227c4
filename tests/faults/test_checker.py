"""The checker notices each promise that is switched off in real processes."""

from __future__ import annotations

import pytest

from tests.faults.breaks import BREAKS, plan_for
from tests.faults.driver import run

pytestmark = pytest.mark.long


@pytest.mark.parametrize("of_batches", [False, True])
async def test_the_checker_notices_each_promise_that_is_switched_off(of_batches: bool) -> None:
    """Several at a time, each with a rule of its own: a fleet costs more than what happens in it."""
    promises = [promise for promise, each in BREAKS.items() if each.of_batches is of_batches]
    report = await run(plan_for(*promises))
    for promise in promises:
        rule, words = BREAKS[promise].rule, BREAKS[promise].words
        noticed = [each for each in report.violations if each.rule == rule and words in each.finding]
        assert noticed, (promise, *report.lines())
