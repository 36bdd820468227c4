"""Why a response does not run: each reason, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.operations.explanation import Explanation, Reason, explain
from app.store.layout import LAYOUT
from app.store.queue.pauses import PauseRow
from app.store.queue.response_facts import ResponseFacts, Surroundings
from tests.unit.operations.cases import (
    BACKGROUND,
    FOREGROUND,
    NOW,
    QUEUE,
    around,
    ended,
    released,
    response,
    running,
    worker,
)

SENT = response(sent_to="w1", sent_seconds=3.0, sends=1)
LOST = worker(lease_seconds=-5.0)
PAUSE = PauseRow(QUEUE, None, "m", NOW, "night", None)
YIELDED = released(yielded=True, yields=1, attempt=2)


@pytest.mark.parametrize(
    ("reason", "of", "among"),
    [
        (Reason.PAUSED, response(), around(worker(), pauses=[PAUSE])),
        (Reason.PAUSED, response(), around(worker(), pauses=[replace(PAUSE, project="red")])),
        (Reason.NO_SLOT, response(), around(worker(), pauses=[replace(PAUSE, project="blue")])),
        (Reason.NO_WORKER, response(), around()),
        (Reason.NO_WORKER, response(), around(LOST)),
        (Reason.NO_WORKER, released(), around()),
        (Reason.OLDER_WORKERS, response(layout=LAYOUT + 1), around(worker())),
        (Reason.DRAINING, response(), around(worker(slots=0))),
        (Reason.DRAINING, released(), around(worker(slots=0))),
        (Reason.DRAINING, response(), around(worker(draining_since=NOW))),
        (Reason.BEHIND_OTHERS, response(), around(worker(), ahead={("blue", BACKGROUND): 3})),
        (Reason.BEHIND_OTHERS, YIELDED, around(worker(), ahead={("blue", BACKGROUND): 3})),
        (Reason.NO_SLOT, response(), around(worker())),
        (Reason.NO_SLOT, response(priority=FOREGROUND), around(worker())),
        (Reason.DUE, response(), around(worker(), taken=2)),
        (Reason.SENT, SENT, around(worker())),
        (Reason.SENT, response(priority=0, sent_seconds=3.0, sends=1), around(worker())),
        (Reason.SENT_TO_LOST_WORKER, SENT, around(worker("w2"))),
        (Reason.SENT_TO_LOST_WORKER, SENT, around(LOST, worker("w2"))),
        (Reason.RELEASED, released(), around(worker("w2"))),
        (Reason.SUSPECT, released(crashes=2), around(worker("w2"))),
        (Reason.RUNNING, running(), around(worker())),
        (Reason.RUNNING, running(), around(worker(slots=0))),
        (Reason.IN_TOOLS, running(), around(worker(), open_calls=["python"])),
        (Reason.LOST_WORKER, running(), around(LOST)),
        (Reason.LOST_WORKER, running(), around(worker("w2"))),
        (Reason.COMPLETED, ended("completed", output_tokens=12), None),
        (Reason.INCOMPLETE, ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), None),
        (Reason.FAILED, ended("failed", error={"code": "run_timeout", "message": "it ran too long"}), None),
        (Reason.CANCELLED, ended("cancelled"), None),
        (Reason.CANCELLED, ended("cancelled", started_seconds=None, attempt=0), None),
    ],
)
def test_each_reason_follows_from_the_rows(reason: Reason, of: ResponseFacts, among: Surroundings | None) -> None:
    assert explain(of, among).reason is reason


def test_every_reason_has_a_case() -> None:
    (mark,) = test_each_reason_follows_from_the_rows.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} == set(Reason)


def behind(ahead: dict[tuple[str, int], int], of: ResponseFacts | None = None, **more: float) -> Explanation:
    return explain(of or response(), around(worker(), worker("w2"), ahead=ahead, **more))  # type: ignore[arg-type]


def test_the_place_in_line_is_told_by_whose_responses_are_ahead() -> None:
    found = behind(
        {("red", BACKGROUND): 1, ("blue", BACKGROUND): 1200, ("green", FOREGROUND): 34}, ended_per_second=2.0
    )
    assert found.place is not None and found.place.number == 1235
    assert "1 response of its own project and class and 1,234 responses of 2 other projects" in found.text
    assert "16 slots of 2 workers" in found.text
    assert found.expected_seconds == pytest.approx(618)
    assert "in about 10 min" in found.text


def test_lines_in_files_are_named_among_those_ahead() -> None:
    found = explain(response(), around(worker(), ahead={("red", BACKGROUND): 48_000}, is_exact=False, in_files=46_976))
    ahead = "about 48,000 responses of its own project and class (about 46,976 lines of batches in files among them)"
    assert f"behind {ahead}, for 8 slots" in found.text


def test_a_pause_says_since_when_why_and_how_it_ends() -> None:
    found = explain(response(), around(worker(), pauses=[replace(PAUSE, project="red")]))
    assert found.text == "It waits because project red in m is paused since 2026-11-27 00:00 UTC: night."
    assert found.advice == "`longhaul resume m --project red` lets it go on."


def test_a_second_attempt_says_why_it_is_one() -> None:
    found = explain(running(attempt=3, yields=1, crashes=1), around(worker()))
    assert "attempt 3 (yielded 1 time, crashed 1 time)" in found.text
    assert "w1 (gpu-1, process 17)" in found.text


def test_an_end_says_when_how_and_why() -> None:
    found = explain(ended("failed", error={"code": "run_timeout", "message": "it ran too long"}), None)
    assert found.text == "It ended as failed 10 s ago, after 90 s, in attempt 1: run_timeout: it ran too long"
