"""What became of a response, from its rows and its log."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from app.operations.history import history_of
from app.store.guards import HandOver
from app.store.operations.known import HandedOver, KnownResponse, LoggedAttempt
from tests.unit.operations.cases import NOW, response

LATER = NOW + timedelta(seconds=30)


def facts(status: str = "in_progress", how: HandOver = HandOver.CRASHED) -> KnownResponse:
    ended = None if status == "in_progress" else NOW
    given = HandedOver(1, "w1", NOW, LATER, how)
    return response(status=status, inserted_at=NOW, attempt=2, finished_at=ended, history=(given,))


def logged(attempt: int, *, has_progressed: bool) -> LoggedAttempt:
    return LoggedAttempt(attempt, 2, 17, 14, 771 if has_progressed else 0, has_progressed, 0, 0)


@pytest.mark.parametrize(
    ("status", "log", "said"),
    [
        ("in_progress", [logged(1, has_progressed=True)], "; counted as a crash: no, it had made progress"),
        ("in_progress", [logged(1, has_progressed=False)], "; counted as a crash: yes, it had made no progress"),
        ("in_progress", [], "; counted as a crash: yes, it had made no progress"),
        ("completed", [logged(1, has_progressed=True)], "; counted as a crash: no, it had made progress"),
        ("completed", [logged(1, has_progressed=False)], ""),
    ],
)
def test_a_death_says_whether_it_counts_as_a_crash(status: str, log: list[LoggedAttempt], said: str) -> None:
    assert history_of(facts(status), log).moments[-1].what == f"its worker died{said}"


def test_another_hand_over_is_no_crash() -> None:
    whats = [each.what for each in history_of(facts(how=HandOver.YIELDED)).moments]
    assert whats[-1] == "gave its slot to a foreground response"


def test_a_hand_over_that_a_newer_version_calls_by_another_name_is_shown() -> None:
    history = history_of(replace(facts(), history=(HandedOver(1, "w1", None, LATER, "moved_away"),)))
    assert history.moments[-1].what == "handed over: moved away"


def test_a_response_that_is_sent_again_says_how_often() -> None:
    again = response(inserted_at=NOW, sent_at=NOW, sent_to="w1", sends=2)
    assert history_of(again).moments[-1].what == "sent to a worker, for the 2nd time"
