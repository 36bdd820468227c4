"""What is sent now, and in which kind of place, without a database."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.queue.message import FOREGROUND, Priority
from app.scheduling.decisions import (
    MAX_SENT,
    TRIALS_AT_ONCE,
    Arrival,
    QueueState,
    Room,
    RunningFlow,
    TrialLoad,
    at_once,
    dispatched,
    retried,
    tried,
)
from app.scheduling.loads import Load, kept_of, most_foreground_of
from app.scheduling.order import Flow, WaitingFlow
from app.scheduling.placement import Candidate
from tests.unit.scheduling.cases import CLASSES, flow, flows, loads

LIVE, WORK = Priority.FOREGROUND, Priority.BACKGROUND


def arrivals(*priorities: int) -> list[Arrival]:
    return [Arrival(Candidate(str(number)), priority) for number, priority in enumerate(priorities)]


def full(node: str = "a", slots: int = 32, **more: int) -> Load:
    return Load(node, slots, slots - kept_of(slots), background=slots - kept_of(slots), **more)


# Inserts


@given(loads=loads, priorities=st.lists(st.sampled_from(CLASSES), max_size=60), waits=st.booleans())
def test_an_insert_sends_no_more_than_there_are_slots_and_places(
    loads: list[Load], priorities: list[Priority], waits: bool
) -> None:
    made = arrivals(*priorities)
    found = at_once(made, QueueState(loads, waits=waits))
    assert list(found) == [each.candidate.id for each in made]
    for load in loads:
        own = [each for each in found.values() if each.sent_to == load.node]
        assert sum(each.foreground_place for each in own) <= max(load.kept_room, 0)
        assert sum(not each.foreground_place for each in own) <= max(load.open_room, 0)
    for each in made:
        sending = found[each.candidate.id]
        assert sending.at_once or sending.sent_to is None
        assert not sending.foreground_place or each.priority in FOREGROUND
        if waits and not sending.foreground_place:
            assert not sending.at_once


def test_beyond_the_kept_places_the_foreground_waits_where_background_runs() -> None:
    found = at_once(arrivals(LIVE, LIVE, LIVE, WORK), QueueState([Load("a", 32, 1, background=1)]))
    assert [(each.at_once, each.foreground_place) for each in found.values()] == [
        (True, True),
        (True, True),
        (False, False),
        (True, False),
    ]
    idle = at_once(arrivals(LIVE, LIVE, LIVE), QueueState([Load("a", 32)]))
    assert [each.at_once for each in idle.values()] == [True] * 3


def test_an_insert_passes_no_foreground_that_waits() -> None:
    found = at_once(arrivals(LIVE), QueueState([Load("a", 32)], waits=True, foreground_waits=True))
    assert not found["0"].at_once


# Dispatches


@given(loads=loads, flows=flows, room=st.builds(Room, st.integers(0, MAX_SENT), st.integers(0, MAX_SENT)))
def test_a_dispatch_sends_each_once_in_order_and_no_more_than_there_is_room(
    loads: list[Load], flows: list[WaitingFlow], room: Room
) -> None:
    sent = dispatched(loads, flows, 0.0, room)
    ids = [id(each.tagged.candidate) for each in sent]
    assert len(set(ids)) == len(ids)
    for place in (True, False):
        orders = [each.tagged.order for each in sent if each.foreground_place is place]
        assert orders == sorted(orders)
        assert len(orders) <= (room.foreground if place else room.open)
    given_to = Counter((each.node, each.foreground_place) for each in sent)
    for load in loads:
        assert given_to[load.node, True] <= max(load.most_room, 0)
        after = replace(load, foreground=load.foreground + given_to[load.node, True])
        assert given_to[load.node, False] <= max(after.open_room, 0)


def test_the_foreground_takes_what_is_kept_and_pushes_out_no_more_than_its_flow_may() -> None:
    live, work = flow("a", [10] * 40, LIVE), flow("b", [10] * 40, WORK, 100)
    room = QueueState([full()], waits=True, foreground_waits=True).room()
    assert room == Room(0, most_foreground_of(32))
    assert len(dispatched([full()], [live, work], 0.0, room)) == kept_of(32), "nobody runs whom it may push out"
    running = [RunningFlow(Flow("b", WORK), 6)]
    most = 12  # 6 of weight 2 are as many as 12 of weight 4
    assert [each.foreground_place for each in dispatched([full()], [live, work], 0.0, room, running)] == [True] * most
    running.append(RunningFlow(Flow("a", LIVE), most))
    assert len(dispatched([full()], [live, work], 0.0, room, running)) == kept_of(32)


def test_what_got_a_foreground_place_leaves_less_to_all() -> None:
    live, work = flow("a", [10] * 40, LIVE), flow("b", [10] * 40, WORK, 100)
    sent = dispatched([Load("a", 32)], [live, work], 0.0, Room(MAX_SENT, 16))
    places = Counter(each.foreground_place for each in sent)
    assert places == {True: kept_of(32), False: 32 - kept_of(32)}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (QueueState(waits=True), Room(0, 0)),
        (QueueState([Load("a", 8)]), Room(0, 0)),
        (QueueState([Load("a", 8, 3)], waits=True), Room(5, 0)),
        (QueueState([Load("a", 8, 8)], waits=True), Room(0, 0)),
        (QueueState([Load("a", 8, 8, ahead=10)], waits=True), Room(10, 0)),
        (QueueState([Load("a", 8, 14, ahead=10)], waits=True), Room(0, 0)),
        (QueueState([Load("a", 8, 13, ahead=10)], waits=True), Room(5, 0)),
        (QueueState([Load("a", 8, 14, ahead=10), Load("b", 8, 7)], waits=True), Room(5, 0)),
        (QueueState([Load("a", 999)], waits=True), Room(MAX_SENT, 0)),
        (QueueState([Load("a", 8, 8)], waits=True, foreground_waits=True), Room(0, 4)),
        (QueueState([Load("a", 8, 8, 4)], waits=True, foreground_waits=True), Room(0, 0)),
    ],
)
def test_a_dispatch_is_worth_it_if_a_slot_is_free_or_half_of_what_is_ahead_is_used_up(
    state: QueueState, expected: Room
) -> None:
    assert state.room() == expected
    assert bool(expected) == (expected != Room(0, 0))


# Redelivery


@given(loads=loads.filter(bool), count=st.integers(0, 40))
def test_released_responses_go_at_once_however_full_the_workers_are(loads: list[Load], count: int) -> None:
    assert len(retried([Candidate(str(number)) for number in range(count)], loads)) == count
    assert retried([Candidate("0")], []) == {}


def test_suspects_go_a_few_at_a_time_to_workers_without_others_work() -> None:
    suspects = [Candidate(str(number)) for number in range(40)]
    idle, busy = TrialLoad(Load("a", 32), 0, 0, False), TrialLoad(Load("b", 32), 0, 5, False)
    assert Counter(tried(suspects, [idle, busy], anywhere=False).values()) == {"a": TRIALS_AT_ONCE}
    assert Counter(tried(suspects, [idle, busy], anywhere=True).values()) == {"a": TRIALS_AT_ONCE, "b": TRIALS_AT_ONCE}
    fresh = TrialLoad(Load("b", 4), 3, 5, True)
    assert Counter(tried(suspects, [fresh], anywhere=False).values()) == {"b": 1}
