"""The table of status transitions allows no illegal change."""

from __future__ import annotations

import pytest

from app.protocol.status import FINAL, TRANSITIONS, Status, sources_of

ORDER = {Status.QUEUED: 0, Status.IN_PROGRESS: 1, **dict.fromkeys(FINAL, 2)}


@pytest.mark.parametrize("name", TRANSITIONS)
def test_no_transition_leaves_a_final_status(name: str) -> None:
    assert not TRANSITIONS[name].sources & FINAL


@pytest.mark.parametrize("name", TRANSITIONS)
def test_no_transition_goes_back(name: str) -> None:
    transition = TRANSITIONS[name]
    assert all(ORDER[source] <= ORDER[transition.target] for source in transition.sources)


@pytest.mark.parametrize("status", sorted(FINAL, key=lambda status: status.value))
def test_a_response_in_progress_can_reach_every_final_status(status: Status) -> None:
    assert Status.IN_PROGRESS in sources_of(status)


def test_nothing_becomes_queued() -> None:
    assert sources_of(Status.QUEUED) == frozenset()
