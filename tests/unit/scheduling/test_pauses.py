"""What is paused, without a database."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.queue.message import FOREGROUND, Priority
from app.scheduling.decisions import Arrival, QueueState, Sending, at_once
from app.scheduling.loads import Load
from app.scheduling.placement import Candidate
from tests.unit.scheduling.cases import loads

arriving = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(Priority))), max_size=30)
paused = st.sets(st.sampled_from(["a", "b", None]))


def made(each: list[tuple[str, Priority]]) -> list[Arrival]:
    return [Arrival(Candidate(str(number)), priority, project) for number, (project, priority) in enumerate(each)]


@given(loads=loads, each=arriving, paused=paused)
def test_others_get_what_they_would_get_if_what_is_paused_had_not_come(
    loads: list[Load], each: list[tuple[str, Priority]], paused: set[str | None]
) -> None:
    arrivals = made(each)
    found = at_once(arrivals, QueueState(loads, paused=paused))
    held = [one for one in arrivals if {None, one.project} & paused]
    for one in held:
        assert found[one.candidate.id] == Sending(False, is_refused=one.priority in FOREGROUND)
    others = [one for one in arrivals if one not in held]
    assert {one.candidate.id: found[one.candidate.id] for one in others} == at_once(others, QueueState(loads))


def test_nobody_is_refused_without_a_pause() -> None:
    arrivals = made([("a", Priority.FOREGROUND)])
    found = at_once(arrivals, QueueState([Load("w", 32)], paused={"a"}))
    assert found["0"].is_refused
    assert not any(each.is_refused for each in at_once(arrivals, QueueState([])).values())
