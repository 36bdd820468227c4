"""A budget of bytes, and its leases."""

from __future__ import annotations

import pytest

from app.budget import FREE_BYTES, Budget, OverBudget


def test_small_holders_are_not_counted() -> None:
    budget = Budget(0)
    for _ in range(1000):
        budget.lease().hold(FREE_BYTES)
    assert budget.held == 0


def test_a_lease_that_would_exceed_the_budget_stays_as_it_was() -> None:
    budget = Budget(100)
    first, second = budget.lease(), budget.lease()
    first.hold(FREE_BYTES + 60)
    second.hold(FREE_BYTES + 40)
    with pytest.raises(OverBudget):
        second.hold(FREE_BYTES + 41)
    assert budget.held == 100
    first.release()
    second.hold(FREE_BYTES + 100)
    assert budget.held == 100
    second.release()
    second.release()
    assert budget.held == 0


def test_a_lease_shrinks_even_if_the_budget_is_full() -> None:
    budget = Budget(100)
    lease = budget.lease()
    lease.hold(FREE_BYTES + 100)
    lease.hold(FREE_BYTES + 1)
    assert budget.held == 1
