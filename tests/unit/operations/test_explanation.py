"""Why a response does not run: each reason, without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.operations.explanation import Reason, explain
from app.operations.models import about_ahead
from app.store.layout import LAYOUT
from app.store.operations.known import KnownResponse
from app.store.operations.snapshot import Snapshot
from app.store.queue.pauses import PauseRow
from tests.unit.operations.cases import (
    BACKGROUND,
    FOREGROUND,
    NOW,
    QUEUE,
    ago,
    ended,
    look,
    released,
    response,
    running,
    waiting,
    worker,
)

SENT = response(sent_to="w1", sent_at=ago(3), sends=1)
LOST = worker(lease_seconds=-5.0)
PAUSE = PauseRow(QUEUE, None, "m", NOW, "night", None)
YIELDED = released(yielded=True, yields=1, attempt=2)
OTHERS = [waiting(3, "blue")]


@pytest.mark.parametrize(
    ("reason", "of", "among"),
    [
        (Reason.PAUSED, response(), look(worker(), pauses=[PAUSE])),
        (Reason.PAUSED, response(), look(worker(), pauses=[replace(PAUSE, project="red")])),
        (Reason.NO_SLOT, response(), look(worker(), pauses=[replace(PAUSE, project="blue")])),
        (Reason.NO_WORKER, response(), look()),
        (Reason.NO_WORKER, response(), look(LOST)),
        (Reason.NO_WORKER, released(), look()),
        (Reason.OLDER_WORKERS, response(layout=LAYOUT + 1), look(worker())),
        (Reason.DRAINING, response(), look(worker(slots=0))),
        (Reason.DRAINING, released(), look(worker(slots=0))),
        (Reason.DRAINING, response(), look(worker(draining_since=NOW))),
        (Reason.BEHIND_OTHERS, response(), look(worker(), counts=OTHERS)),
        (Reason.BEHIND_OTHERS, YIELDED, look(worker(), counts=OTHERS)),
        (Reason.NO_SLOT, response(), look(worker())),
        (Reason.DUE, response(priority=FOREGROUND), look(worker())),
        (Reason.DUE, response(), look(worker(taken=2))),
        (Reason.SENT, SENT, look(worker())),
        (Reason.SENT_TO_LOST_WORKER, SENT, look(worker("w2"))),
        (Reason.SENT_TO_LOST_WORKER, SENT, look(LOST, worker("w2"))),
        (Reason.RELEASED, released(), look(worker("w2"))),
        (Reason.SUSPECT, released(crashes=2), look(worker("w2"))),
        (Reason.RUNNING, running(), look(worker())),
        (Reason.RUNNING, running(), look(worker(slots=0))),
        (Reason.LOST_WORKER, running(), look(LOST)),
        (Reason.LOST_WORKER, running(), look(worker("w2"))),
        (Reason.COMPLETED, ended("completed", usage={"output_tokens": 12}), look()),
        (Reason.INCOMPLETE, ended("incomplete", incomplete_details={"reason": "max_output_tokens"}), look()),
        (Reason.FAILED, ended("failed", error={"code": "run_timeout", "message": "it ran too long"}), look()),
        (Reason.CANCELLED, ended("cancelled"), look()),
        (Reason.CANCELLED, ended("cancelled", started_at=None, attempt=0), look()),
    ],
)
def test_each_reason_follows_from_the_rows(reason: Reason, of: KnownResponse, among: Snapshot) -> None:
    assert explain(of, among).reason is reason


def test_a_response_whose_tools_have_not_answered_says_which() -> None:
    found = explain(running(), look(worker()), ["python"])
    assert found.reason is Reason.IN_TOOLS
    assert found.text.endswith("begun 30 s ago, attempt 1, and waits for its tools: python.")


def test_a_response_in_line_says_about_how_many_are_before_it() -> None:
    counts = [waiting(1200, "blue"), waiting(3, "green", FOREGROUND), waiting(90), waiting(50, "grey")]
    found = explain(
        response(before=40),
        look(worker(), worker("w2"), counts=counts, pauses=[replace(PAUSE, project="grey")]),
    )
    assert found.behind == 40 + 41 + 3
    assert "behind about 84 responses in this queue, for 16 slots of 2 workers of m" in found.text


def test_a_foreground_response_waits_behind_the_foreground_alone() -> None:
    counts = [waiting(1200), waiting(2, "blue", FOREGROUND), waiting(1, "red", FOREGROUND)]
    assert about_ahead(counts, "red", FOREGROUND, 0, foreground=True) == 1
    assert about_ahead(counts, "red", BACKGROUND, 5, foreground=False) == 5 + 2 + 1


def test_a_pause_says_since_when_why_and_how_it_ends() -> None:
    found = explain(response(), look(worker(), pauses=[replace(PAUSE, project="red")]))
    assert found.text == "It waits because project red in m is paused since 2026-11-27 00:00 UTC: night."
    assert found.advice == "`longhaul resume m --project red` lets it go on."


def test_a_second_attempt_says_why_it_is_one() -> None:
    found = explain(running(attempt=3, yields=1, crashes=1), look(worker()))
    assert "attempt 3 (yielded 1 time, crashed 1 time)" in found.text
    assert "w1 (gpu-1, process 17)" in found.text


def test_an_end_says_when_how_and_why() -> None:
    found = explain(ended("failed", error={"code": "run_timeout", "message": "it ran too long"}), look())
    assert found.text == "It ended as failed 10 s ago, after 90 s, in attempt 1: run_timeout: it ran too long"
