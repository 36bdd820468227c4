"""Where a response stands in line is its place in the order of dispatches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.queue.message import FOREGROUND, Priority
from app.scheduling.line import LinedFlow, place_of
from app.scheduling.order import Flow, WaitingFlow, WaitingResponse, in_order
from app.scheduling.placement import Candidate

PRIORITIES = [each.value for each in Priority if each is not Priority.COUNT]
LEAD_SECONDS = 10.0


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[WaitingFlow], float]:
    """Flows of a queue with all that waits of them, and its virtual time. Of work in windows some is late."""
    names = draw(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(PRIORITIES)), min_size=1, unique=True))
    weights = {project: draw(st.sampled_from([0.5, 1.0, 4.0])) for project in "abcd"}
    parts = {project: draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])) for project in "abcd"}
    positions = iter(draw(st.permutations(range(200))))
    flows = []
    for project, priority in names:
        costs = draw(st.lists(st.integers(0, 500), min_size=1, max_size=12))
        of_flow = sorted(next(positions) for _ in costs)
        responses = [
            WaitingResponse(Candidate(""), position, cost, draw(st.booleans()), *draw(dues(priority)))
            for position, cost in zip(of_flow, costs, strict=True)
        ]
        beside = [other for owner, other in names if owner == project]
        tag = draw(st.none() | st.floats(0, 300))
        flow = Flow(project, priority, weights[project])
        scale = draw(st.sampled_from([0.3, 1.0, 2.0]))
        flows.append(WaitingFlow(flow, responses, beside, tag, scale, parts[project], LEAD_SECONDS))
    return flows, draw(st.floats(0, 200))


def dues(priority: int) -> st.SearchStrategy[tuple[int, float]]:
    """A rank, and the seconds that are left."""
    if priority != Priority.WINDOW:
        return st.just((0, math.inf))
    return st.integers(0, 20).map(lambda seconds: (1_000_000 * seconds, float(seconds)))


@given(lines(), st.data())
def test_the_place_of_a_response_is_that_in_the_order_of_dispatches(
    line: tuple[list[WaitingFlow], float], data: st.DataObject
) -> None:
    flows, virtual_time = line
    wanted = data.draw(st.sampled_from(flows))
    before = data.draw(st.integers(0, len(wanted.responses) - 1))
    position = wanted.in_line()[before].position
    known = [LinedFlow(flow, len(flow.responses)) for flow in flows]
    place = place_of(position, wanted.flow, (before, 0), known, virtual_time)
    same = [each for each in flows if each.flow.is_foreground or not wanted.flow.is_foreground]
    order = [each.position for each in in_order(same, virtual_time)]
    assert place.is_exact
    assert place.number == order.index(position)
    assert place.ahead.get(wanted.flow, 0) == before


def test_what_stands_behind_another_of_its_flow_does_not_come_first_for_its_position() -> None:
    """In windows the deadline decides within a flow, and what is late comes last. All cost nothing, so all tie."""
    late, soon = (
        WaitingResponse(Candidate(""), 0, 0, rank=0, seconds_left=0.0),
        [WaitingResponse(Candidate(""), position, 0, rank=11_000_000, seconds_left=11.0) for position in (192, 195)],
    )
    windows = WaitingFlow(Flow("c", Priority.WINDOW), [late, *soon], [Priority.WINDOW], None, 1.0, 0.3, LEAD_SECONDS)
    others = [WaitingResponse(Candidate(""), position, 0) for position in (66, 67)]
    ordinary = WaitingFlow(Flow("a", Priority.BACKGROUND), others, [Priority.BACKGROUND])
    flows = [LinedFlow(each, len(each.responses)) for each in (windows, ordinary)]
    assert [each.position for each in in_order([windows, ordinary], 0.0)] == [66, 192, 67, 195, 0]
    assert place_of(67, ordinary.flow, (1, 0), flows, 0.0).number == 2


def flow(
    project: str, count: int, *, known: int | None = None, first: int = 0, cost: int = 100, in_files: int = 0
) -> LinedFlow:
    """A flow of equal costs, of which the first `known` were read."""
    responses = [WaitingResponse(Candidate(""), first + n, cost) for n in range(count if known is None else known)]
    waiting = WaitingFlow(Flow(project, Priority.BACKGROUND), responses, [Priority.BACKGROUND])
    return LinedFlow(waiting, count, in_files)


def test_what_was_not_read_is_taken_for_equal_costs() -> None:
    flows = [flow("a", 1000, known=10), flow("b", 1000, known=10, first=5000)]
    place = place_of(400, flows[0].waiting.flow, (400, 0), flows, 0.0)
    assert not place.is_exact
    assert place.ahead[flows[0].waiting.flow] == 400
    assert 399 <= place.ahead[flows[1].waiting.flow] <= 401


def test_lines_in_files_of_another_flow_are_ahead_as_far_as_their_turn_comes_first() -> None:
    flows = [flow("a", 1000), flow("b", 10, first=5000, in_files=700)]
    for before, ahead in ((5, 5), (400, 400), (900, 710)):
        place = place_of(before, flows[0].waiting.flow, (before, 0), flows, 0.0)
        assert place.ahead[flows[1].waiting.flow] == pytest.approx(ahead, abs=1)
        assert place.in_files == pytest.approx(max(ahead - 10, 0), abs=1)


def test_foreground_responses_stand_in_a_line_of_their_own() -> None:
    background = flow("a", 1000)
    waiting = replace(flow("b", 2, first=5000).waiting, flow=Flow("b", FOREGROUND[1]), beside=[FOREGROUND[1]])
    place = place_of(5001, waiting.flow, (1, 0), [background, LinedFlow(waiting, 2)], 0.0)
    assert place.number == 1
