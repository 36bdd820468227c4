"""The table of status transitions allows no illegal change."""

from __future__ import annotations

from app.protocol.status import FINAL, TRANSITIONS, Status

ORDER = {Status.QUEUED: 0, Status.IN_PROGRESS: 1, **dict.fromkeys(FINAL, 2)}


def test_no_transition_goes_back_or_leaves_a_final_status() -> None:
    for name, transition in TRANSITIONS.items():
        assert not transition.sources & FINAL, name
        assert all(ORDER[source] <= ORDER[transition.target] for source in transition.sources), name


def test_every_final_status_is_reached_from_progress_and_nothing_becomes_queued() -> None:
    targets = [each.target for each in TRANSITIONS.values() if Status.IN_PROGRESS in each.sources]
    assert set(targets) == {Status.IN_PROGRESS, *FINAL}
    assert Status.QUEUED not in {each.target for each in TRANSITIONS.values()}
