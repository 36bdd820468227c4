"""Which worker takes a response, without a database."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.scheduling.loads import Load
from app.scheduling.placement import SURPLUS, Candidate, places, preferred
from tests.unit.scheduling.cases import NODES, loads

wishes = st.lists(
    st.tuples(st.sampled_from([None, *NODES]), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), max_size=60
)


def candidates(found: list[tuple[str | None, int | None]]) -> list[Candidate]:
    return [Candidate(str(number), (node,), affinity) for number, (node, affinity) in enumerate(found)]


def open_room(load: Load) -> int:
    return load.open_room


@given(loads=loads, found=wishes)
def test_as_many_get_a_place_as_there_is_room_for_and_no_worker_gets_more(
    loads: list[Load], found: list[tuple[str | None, int | None]]
) -> None:
    placed = places(candidates(found), loads, open_room)
    given_to = Counter(placed.values())
    rooms = {load.node: max(load.open_room, 0) for load in loads}
    assert all(count <= rooms[node] for node, count in given_to.items())
    assert len(placed) == min(len(found), sum(rooms.values()))
    assert list(placed) == sorted(placed, key=int)


@given(loads=loads, count=st.integers(0, 60))
def test_without_wishes_the_first_ones_get_a_place_and_workers_fill_alike(loads: list[Load], count: int) -> None:
    placed = places([Candidate(str(number)) for number in range(count)], loads, open_room)
    assert list(placed) == [str(number) for number in range(len(placed))]
    given_to = Counter(placed.values())
    for full in loads:
        for other in loads:
            if given_to[full.node] and given_to[other.node] < max(other.open_room, 0):
                before = (full.has + given_to[full.node] - 1) / full.slots
                assert before <= (other.has + given_to[other.node]) / other.slots + 1 / other.slots


@given(loads=loads, found=wishes)
def test_no_wish_leads_further_than_the_surplus_beyond_the_emptiest(
    loads: list[Load], found: list[tuple[str | None, int | None]]
) -> None:
    wanted = [Candidate(each.id, each.nodes) for each in candidates(found) if each.nodes != (None,)]
    placed = places(wanted, loads, open_room)
    with_room = [load for load in loads if load.open_room > 0]
    least = min((load.has / load.slots for load in with_room), default=0.0)
    for load in with_room:
        stayed = [each for each in wanted if each.nodes == (load.node,) and placed.get(each.id) == load.node]
        moved = [each for each in wanted if each.nodes == (load.node,) and placed.get(each.id) not in (load.node, None)]
        if moved and load.open_room > len(stayed):
            others = sum(node == load.node for node in placed.values()) - len(stayed)
            assert load.has + len(stayed) > load.slots * (least + SURPLUS) or others


def test_the_worker_that_ran_it_comes_before_the_one_that_its_affinity_falls_to() -> None:
    falls_to = preferred(Candidate("1", (), 7), NODES)
    other = next(node for node in NODES if node != falls_to)
    assert preferred(Candidate("1", (other,), 7), NODES) == other
    assert preferred(Candidate("1", ("gone",), 7), NODES) == falls_to
    assert preferred(Candidate("1", ("gone",)), NODES) is None


@given(affinity=st.integers(-(2**63), 2**63 - 1), gone=st.sampled_from(NODES))
def test_if_a_worker_goes_only_what_fell_to_it_moves(affinity: int, gone: str) -> None:
    before = preferred(Candidate("1", (), affinity), NODES)
    after = preferred(Candidate("1", (), affinity), [node for node in NODES if node != gone])
    assert (after == before) is (before != gone)


def test_affinities_are_spread_over_the_workers() -> None:
    found = Counter(preferred(Candidate("1", (), affinity), NODES) for affinity in range(4000))
    assert all(800 < found[node] < 1200 for node in NODES)
