"""Start-time fair queueing, without a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.queue.message import Priority
from app.scheduling.order import MAX_CHARGE, Flow, WaitingFlow, WaitingResponse, in_order
from app.scheduling.placement import Candidate
from tests.unit.scheduling.cases import BACKGROUND, CLASSES, flow, flows


def first(flows: list[WaitingFlow], count: int, virtual_time: float = 0.0) -> list[str]:
    return [response.candidate.id for response in islice(in_order(flows, virtual_time), count)]


def shares(flows: list[WaitingFlow], count: int) -> Counter[str]:
    return Counter(name[0] for name in first(flows, count))


@given(flows=flows, virtual_time=st.floats(0, 1e6))
def test_each_response_comes_once_starts_rise_and_a_flow_keeps_its_order(
    flows: list[WaitingFlow], virtual_time: float
) -> None:
    tagged = list(in_order(flows, virtual_time))
    assert len(tagged) == sum(len(each.responses) for each in flows)
    last = [each.flow for each in flows if each.in_windows and not each.part]
    starts = [(response.flow in last, response.start) for response in tagged]
    assert starts == sorted(starts), "work in windows that has not risen comes after all others"
    for each in flows:
        own = [response for response in tagged if response.flow == each.flow]
        assert [response.candidate for response in own] == [response.candidate for response in each.responses]
        assert [response.number for response in own] == list(range(1, len(own) + 1))
        assert all(response.start >= virtual_time and response.finish >= response.start for response in own)


def test_flows_get_shares_by_the_weights_of_their_projects_and_by_cost() -> None:
    other = flow("b", [100] * 90, first=100)
    assert shares([flow("a", [100] * 90, project_weight=2.0), other], 60) == {"a": 40, "b": 20}
    assert shares([flow("a", [300] * 90), other], 60) == {"a": 15, "b": 45}


def test_a_flow_whose_responses_take_more_than_they_say_is_charged_more() -> None:
    assert shares([flow("a", [100] * 90, scale=3.0), flow("b", [100] * 90, first=100)], 60) == {"a": 15, "b": 45}


def test_the_flows_of_a_project_share_the_weight_of_its_best_tier() -> None:
    both = [Priority.FOREGROUND, Priority.BACKGROUND]
    own = [flow("a", [100] * 200, priority, 1000 * priority, both) for priority in both]
    order = islice(in_order([*own, flow("b", [100] * 200)], 0.0), 120)
    found = Counter((response.flow.project, response.flow.priority) for response in order)
    assert found[("b", BACKGROUND)] == pytest.approx(60, abs=2)
    assert found[("a", Priority.FOREGROUND)] == pytest.approx(2 * found[("a", BACKGROUND)], abs=2)


def classes(priorities: Sequence[Priority], count: int) -> Counter[int]:
    """How many of each class come first of one project that has all these."""
    own = [flow("a", [1] * 1000, each, 1000 * each, list(priorities)) for each in priorities]
    return Counter(response.flow.priority for response in islice(in_order(own, 0.0), count))


def test_every_class_gets_a_share_and_the_foreground_the_larger() -> None:
    found = classes(CLASSES, 976)
    most = [Priority.PRIORITY_FOREGROUND, Priority.PRIORITY_BACKGROUND, Priority.FOREGROUND, Priority.BACKGROUND]
    assert [found[each] for each in most] == pytest.approx([512, 256, 128, 64], abs=8)
    assert (found[Priority.FLEX_FOREGROUND], found[Priority.FLEX]) == pytest.approx((10, 5), abs=2)
    default = [Priority.FOREGROUND, Priority.BACKGROUND, Priority.FLEX]
    assert classes(default, 1000)[Priority.FLEX] >= 20


def test_the_tiers_of_two_projects_keep_their_weights() -> None:
    two = [flow("a", [100] * 400, Priority.FOREGROUND), flow("b", [100] * 400, Priority.PRIORITY_BACKGROUND, 400)]
    assert shares(two, 200)["b"] == pytest.approx(160, abs=4)


def test_an_idle_flow_has_no_credit_and_goes_first_among_equals() -> None:
    busy = flow("a", [100] * 5, tag=1000.0)
    assert first([busy, flow("b", [100] * 5, first=100, tag=10.0)], 2, 1000.0) == ["b100", "a0"]
    assert first([busy, flow("b", [100] * 5, first=100, tag=1000.0)], 2, 1000.0) == ["a0", "b100"]


def test_what_was_charged_before_is_not_charged_again() -> None:
    again = [WaitingResponse(Candidate("a0"), 0, 500, True), WaitingResponse(Candidate("a1"), 1, 500)]
    tagged = list(in_order([WaitingFlow(Flow("a", BACKGROUND), again, [BACKGROUND])], 0.0))
    assert [(response.start, response.charge) for response in tagged] == [(0.0, 0), (0.0, 500)]


def test_a_charge_is_bounded() -> None:
    (response,) = in_order([flow("a", [MAX_CHARGE], scale=100.0)], 0.0)
    assert response.charge == MAX_CHARGE
