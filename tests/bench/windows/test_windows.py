"""What the policy promises of work in windows, in simulated hours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.bench.windows.loads import CAPACITY, TOKENS, Scenario, full, hopeless, valleys
from tests.bench.windows.simulation import HOUR, DeadlinesFirst, Fifo, Outcome, Policy, Simulation


@cache
def outcome(scenario: Callable[[], Scenario], policy: type[Policy] = Policy) -> Outcome:
    made = scenario()
    return Simulation(made.jobs, policy()).run(made.hours)


@pytest.mark.parametrize("scenario", [valleys, full])
def test_what_can_be_in_time_is_and_nothing_is_in_vain(scenario: Callable[[], Scenario]) -> None:
    made = scenario()
    found = outcome(scenario)
    assert (len(found.in_time), found.missed, found.wasted) == (len(made.of("a", in_window=True)), [], 0)


def test_ordinary_work_of_another_project_waits_less_than_by_deadlines_or_arrival() -> None:
    made = valleys()
    ordinary = made.of("b", in_window=False)
    waits = outcome(valleys).waits(ordinary)
    assert waits < outcome(valleys, Fifo).waits(ordinary) / 2
    assert waits < outcome(valleys, DeadlinesFirst).waits(ordinary) / 2


@pytest.mark.parametrize("scenario", [full, hopeless])
def test_another_project_loses_nothing_of_its_share(scenario: Callable[[], Scenario]) -> None:
    made = scenario()
    assert outcome(scenario).served["b"] >= 0.49 * CAPACITY * TOKENS * made.hours


def test_ordinary_work_of_the_project_itself_does_not_stand_behind_its_windows() -> None:
    made = full()
    ordinary = made.of("a", in_window=False)
    assert outcome(full).waits(ordinary) < 60 < outcome(full, Fifo).waits(ordinary)


def test_a_hopeless_load_leaves_what_can_still_be_in_time_its_share() -> None:
    """`a` needs twice its share: about half of what it asks is in time, and no slot works in vain."""
    made = hopeless()
    found, by_arrival = outcome(hopeless), outcome(hopeless, Fifo)
    assert found.wasted == 0
    assert found.served["a"] >= 0.45 * CAPACITY * TOKENS * made.hours
    assert len(found.in_time) > 1.5 * len(by_arrival.in_time)


def test_the_nearest_deadline_goes_first() -> None:
    """What is due within two hours ends before what came before it and has eight."""
    made = full()
    found = outcome(full)
    windows = {job.number: job.window for job in made.of("a", in_window=True)}
    late = [number for number, window in windows.items() if window == 8 * HOUR]
    soon = [job.number for job in made.of("a", in_window=True) if job.window == 2 * HOUR and job.at < HOUR]
    assert max(found.ended[each] for each in soon) < max(found.ended[each] for each in late)
