"""Work in windows, without a database: how far it rises, whose share it takes, and what goes first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.queue.message import Priority
from app.scheduling.order import MAX_WINDOW_PART, Flow, WaitingFlow, WaitingResponse, in_order
from app.scheduling.placement import Candidate
from app.scheduling.windows import RISEN_AT, RISES_AT, Demand, part_of, pressure, share_of

HOUR = 3600.0
WINDOW, BACKGROUND = Priority.WINDOW, Priority.BACKGROUND


def flow(project: str, count: int, priority: Priority = BACKGROUND, beside: list[int] | None = None) -> WaitingFlow:
    """A flow of so many equal responses, due one second after the other."""
    responses = [
        WaitingResponse(Candidate(f"{project}{priority.value}-{n}"), n, 100, False, n, 100.0 + n) for n in range(count)
    ]
    return WaitingFlow(Flow(project, priority), responses, beside or [priority])


def counts(flows: list[WaitingFlow], count: int) -> Counter[tuple[str, int]]:
    sent = islice(in_order(flows, 0.0), count)
    return Counter((each.flow.project, each.flow.priority) for each in sent)


def both(part: float, project: str = "a") -> list[WaitingFlow]:
    """A project with ordinary work, and with work in windows that has risen so far."""
    beside: list[int] = [BACKGROUND, WINDOW]
    return [replace(flow(project, 400, each, beside), part=part) for each in (BACKGROUND, WINDOW)]


def test_pressure_is_what_the_deadline_that_needs_most_needs() -> None:
    demands = [Demand(8 * HOUR, 7000.0 * 3600), Demand(2 * HOUR, 1000.0 * 3600)]
    assert pressure(demands, 1000.0, 0.0) == pytest.approx(1.0), "8,000 seconds of work within 8 hours"
    assert pressure(demands[1:], 1000.0, 0.0) == pytest.approx(0.5)
    assert pressure(demands[1:], 1000.0, HOUR) == pytest.approx(1.0), "the last one has to begin an hour before"


def test_what_cannot_be_in_time_does_not_press() -> None:
    assert pressure([Demand(10.0, 1e9)], 1000.0, 20.0) == 0.0
    assert pressure([Demand(10.0, 1e9), Demand(HOUR + 20.0, 500.0 * HOUR)], 1000.0, 20.0) == pytest.approx(0.5)


def test_without_workers_work_in_windows_has_risen() -> None:
    assert part_of([Demand(HOUR, 1.0)], 0.0, 0.0) == 1.0


@given(
    demands=st.lists(st.builds(Demand, st.floats(1.0, 1e5), st.floats(0.0, 1e9)), max_size=10),
    rate=st.floats(1.0, 1e6),
    more=st.floats(1.0, 10.0),
)
def test_less_time_and_more_work_never_lower_it(demands: list[Demand], rate: float, more: float) -> None:
    part = part_of(demands, rate, 0.0)
    assert 0.0 <= part <= 1.0
    assert part_of([Demand(each.seconds / more, each.tokens) for each in demands], rate, 0.0) >= part
    assert part_of([Demand(each.seconds, each.tokens * more) for each in demands], rate, 0.0) >= part
    assert part_of(demands, rate * more, 0.0) <= part


def test_it_rises_between_two_pressures() -> None:
    def risen(needed: float) -> float:
        return part_of([Demand(HOUR, needed * HOUR)], 1.0, 0.0)

    assert [risen(0.9 * RISES_AT), risen(RISES_AT)] == [0.0, 0.0]
    assert risen((RISES_AT + RISEN_AT) / 2) == pytest.approx(0.5)
    assert [risen(RISEN_AT), risen(3.0)] == [pytest.approx(1.0), 1.0]


def test_the_share_is_that_beside_the_best_tier_of_each_other_project() -> None:
    own = Flow("a", WINDOW)
    assert share_of(own, []) == 1.0
    assert share_of(own, [Flow("a", Priority.PRIORITY_FOREGROUND)]) == 1.0
    assert share_of(own, [Flow("b", BACKGROUND), Flow("b", Priority.FOREGROUND)]) == 0.5
    assert share_of(own, [Flow("b", Priority.PRIORITY_BACKGROUND)]) == pytest.approx(4 / 20)
    assert share_of(Flow("a", WINDOW, 3.0), [Flow("b", WINDOW)]) == 0.75


def test_until_it_rises_work_in_windows_waits_for_all_other_work() -> None:
    flows = [flow("a", 10, WINDOW), flow("b", 10), flow("c", 10, Priority.FLEX)]
    assert counts(flows, 20) == {("b", BACKGROUND): 10, ("c", Priority.FLEX): 10}
    assert counts([*both(0.0), flow("b", 400)], 400)[("a", WINDOW)] == 0
    assert counts([*both(0.0), flow("b", 400)], 400)[("b", BACKGROUND)] == pytest.approx(200, abs=1), (
        "the share as ever"
    )


@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
def test_what_has_risen_takes_its_part_of_its_own_project_and_nothing_of_others(part: float) -> None:
    found = counts([*both(part), flow("b", 400)], 400)
    assert found[("b", BACKGROUND)] == pytest.approx(200, abs=3)
    assert found[("a", WINDOW)] == pytest.approx(200 * part, abs=3)


def test_other_work_of_its_project_keeps_a_part_whatever_is_due() -> None:
    assert counts(both(1.0), 400)[("a", BACKGROUND)] == pytest.approx(400 * (1 - MAX_WINDOW_PART), abs=3)


def test_a_project_with_work_in_windows_alone_gets_its_share_and_no_more() -> None:
    alone = replace(flow("a", 400, WINDOW), part=1.0)
    assert counts([alone, flow("b", 400)], 400)[("a", WINDOW)] == pytest.approx(200, abs=2)


def test_flex_of_its_project_gains_nothing_by_it() -> None:
    flex = replace(flow("a", 400, Priority.FLEX, [Priority.FLEX, WINDOW]), part=0.5)
    windows = replace(flow("a", 400, WINDOW, [Priority.FLEX, WINDOW]), part=0.5)
    found = counts([flex, windows, flow("b", 400)], 400)
    assert found[("a", Priority.FLEX)] == pytest.approx(400 * 0.25 / 6.25, abs=2)


def test_the_nearest_deadline_goes_first_and_what_cannot_be_in_time_last() -> None:
    made = replace(flow("a", 5, WINDOW), lead_seconds=101.5)
    shuffled = replace(made, responses=[made.responses[n] for n in (3, 1, 4, 0, 2)])
    order = [each.candidate.id.split("-")[1] for each in in_order([shuffled], 0.0)]
    assert order == ["2", "3", "4", "0", "1"]


def test_what_continues_goes_by_its_turn() -> None:
    late = WaitingResponse(Candidate("late"), 99, 100, False, 1, 500.0)
    made = flow("a", 4, WINDOW)
    order = [each.candidate.id for each in in_order([replace(made, responses=[*made.responses, late])], 0.0)]
    assert order.index("late") == 2, "behind the head, whose rank it has"
