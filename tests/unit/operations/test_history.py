"""What became of a response, from its rows and its log."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.operations.history import history_of
from app.protocol.status import Status
from app.store.guards import HandOver
from app.store.operations.history import HandedOver, ResponseFacts
from app.store.operations.stories import LoggedAttempt
from tests.unit.operations.cases import NOW

LATER = NOW + timedelta(seconds=30)


def facts(status: Status = Status.IN_PROGRESS, how: HandOver = HandOver.CRASHED) -> ResponseFacts:
    fields: dict[str, Any] = dict.fromkeys(ResponseFacts.__dataclass_fields__)
    given = {"status": status, "inserted_at": NOW, "attempt": 2, "sends": 0, "is_owned": False, "calls": ()}
    return ResponseFacts(**{**fields, **given, "history": (HandedOver(1, "w1", NOW, LATER, how),)})


def logged(attempt: int, *, has_progressed: bool) -> LoggedAttempt:
    return LoggedAttempt(attempt, 2, 17, 14, 771 if has_progressed else 0, has_progressed, 0, 0)


@pytest.mark.parametrize(
    ("status", "log", "said"),
    [
        (Status.IN_PROGRESS, [logged(1, has_progressed=True)], "; counted as a crash: no, it had made progress"),
        (Status.IN_PROGRESS, [logged(1, has_progressed=False)], "; counted as a crash: yes, it had made no progress"),
        (Status.IN_PROGRESS, [], "; counted as a crash: yes, it had made no progress"),
        (Status.COMPLETED, [logged(1, has_progressed=True)], "; counted as a crash: no, it had made progress"),
        (Status.COMPLETED, [logged(1, has_progressed=False)], ""),
    ],
)
def test_a_death_says_whether_it_counts_as_a_crash(status: Status, log: list[LoggedAttempt], said: str) -> None:
    assert history_of(facts(status), log).moments[-1].what == f"its worker died{said}"


def test_another_hand_over_is_no_crash() -> None:
    whats = [each.what for each in history_of(facts(how=HandOver.YIELDED)).moments]
    assert whats[-1] == "gave its slot to a foreground response"


def test_a_hand_over_that_a_newer_version_calls_by_another_name_is_shown() -> None:
    noted = {"attempt": 1, "worker": "w1", "from": None, "to": LATER.isoformat(), "how": "moved_away"}
    found = replace(facts(), history=(HandedOver.from_json(noted),))
    history = history_of(found)
    assert (history.attempts[0].how, history.moments[-1].what) == ("moved_away", "handed over: moved away")
