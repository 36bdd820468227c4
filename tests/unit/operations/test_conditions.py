"""What is wrong with a deployment, or needs attention: each condition, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.operations.conditions import (
    CONDITIONS,
    SCHEMA_CONDITION,
    Code,
    Condition,
    Facts,
    Grade,
    Names,
    holding,
    in_both,
)
from app.operations.models import ModelTotals, backlog, model_totals
from app.protocol.limits import LimitKind, LimitState
from app.store.layout import LAYOUT
from app.store.operations.snapshot import BadEndpoint, Count, Death, Late, Pace, Snapshot, Suspect, Webhooks
from app.store.queue.pauses import PauseRow
from tests.unit.operations.cases import BACKGROUND, FOREGROUND, NOW, QUEUE, begun, look, waiting, worker

MODELS = {QUEUE: "m"}
NAMES = Names({"red": "team red"}, {"key_1": "night shift"})
PAUSE = PauseRow(QUEUE, None, "m", NOW, "new driver", "key_1")
PAUSED_RED = PauseRow(QUEUE, "red", "m", NOW, None, None)
RUNNING = begun("running", 8)


def told(snapshot: Snapshot, models: Any = None, *, redis: bool = True) -> list[Condition]:
    return holding(Facts(snapshot, model_totals(snapshot, MODELS if models is None else models), NAMES, redis))


def totals(snapshot: Snapshot) -> ModelTotals:
    (found,) = model_totals(snapshot, MODELS)
    return found


def test_nothing_is_told_of_a_busy_deployment() -> None:
    assert told(look(worker(), counts=[waiting(seconds=600.0), RUNNING])) == []


CASES: list[tuple[list[Code], Snapshot]] = [
    ([Code.NO_WORKER], look()),
    ([Code.NO_WORKER], look(worker(is_absent=True), counts=[waiting()])),
    ([Code.MAINTENANCE_AWAY], look(worker(), late=Late(usage=61))),
    ([Code.MAINTENANCE_AWAY], look(worker(), late=Late(deadlines=61))),
    ([Code.LOGS_OVERDUE], look(worker(), late=Late(logs=3601))),
    ([Code.LOST_WORKERS], look(worker(), worker("w2", lease_seconds=-61))),
    ([], look(worker(), worker("w2", lease_seconds=-1))),
    ([Code.DRAINING, Code.WORKER_DRAINS], look(worker(slots=0))),
    ([Code.DRAINING, Code.WORKER_DRAINS], look(worker(draining_since=NOW))),
    ([Code.OLDER_WORKERS], look(worker(layout=LAYOUT - 1))),
    ([Code.RELEASED], look(worker(), counts=[begun("released")])),
    ([Code.NOT_DISPATCHED], look(worker(taken=2), counts=[waiting(seconds=1.0)])),
    ([Code.SUSPECTS], look(worker(), counts=[begun("running", 2, suspects=1)])),
    ([Code.PAUSED], look(worker(taken=2), counts=[waiting()], pauses=[PAUSE])),
    ([Code.WORKER_DIED], look(worker(), deaths=[Death(QUEUE, "w0", NOW, 1, 0)])),
    ([Code.STANDS_STILL], look(worker(), counts=[waiting(priority=FOREGROUND), RUNNING])),
]


@pytest.mark.parametrize(("codes", "snapshot"), CASES)
def test_each_condition_follows_from_the_rows(codes: list[Code], snapshot: Snapshot) -> None:
    assert [each.code for each in told(snapshot)] == codes


def test_each_condition_has_its_test_in_the_order_of_the_codes() -> None:
    assert list(CONDITIONS) == list(Code)
    grades = [CONDITIONS[code].grade for code in Code]
    assert grades == sorted(grades, reverse=True), "what is wrong comes first"
    assert SCHEMA_CONDITION.code is Code.SCHEMA


def test_a_model_outside_of_the_file_is_told_while_it_has_work() -> None:
    assert [each.code for each in told(look(counts=[waiting()]), {})] == [Code.NO_WORKER]
    assert [each.code for each in told(look(worker()), redis=False)] == [Code.REDIS_AWAY]


def test_a_brief_condition_counts_if_both_looks_find_it() -> None:
    brief, other = Condition(Code.RELEASED, "", "", "m"), Condition(Code.RELEASED, "", "", "n")
    lasting = Condition(Code.NO_WORKER, "", "", "m")
    assert in_both([brief], [brief]) == [brief]
    assert in_both([brief], [other]) == []
    assert in_both([brief], [lasting]) == [lasting]


@pytest.mark.parametrize(
    ("has", "shown"),
    [
        ({"running": 9}, (8, 1)),
        ({"running": 8}, (8, 0)),
        ({"running": 11, "in_tools": 2}, (8, 1)),
        ({"running": 2, "in_tools": 3}, (0, 0)),
        ({"running": 3, "slots": 0}, (3, 0)),
    ],
)
def test_no_worker_has_more_in_its_slots_than_it_has_slots(has: dict[str, int], shown: tuple[int, int]) -> None:
    found = worker(**has)  # type: ignore[arg-type]
    assert (found.in_slots, found.ahead) == shown


def test_a_model_counts_each_response_once() -> None:
    states = [begun("running", 6), begun("sent", 2), begun("yielded", 3, in_line=2), begun("released", 1)]
    found = totals(look(worker(), worker("w2", slots=0), worker("w3", lease_seconds=-1), counts=[waiting(), *states]))
    assert (found.waiting, found.sent, found.running, found.released) == (5, 3, 6, 1)
    assert found.workers == {"ready": 1, "draining": 1, "drained": 0, "absent": 0, "lost": 1}
    assert (found.slots, found.oldest_waiting_seconds) == (8, 60.0)


def test_the_queue_is_added_up_by_model_project_or_key() -> None:
    counts = [Count(QUEUE, "red", key, BACKGROUND, "waiting", number) for key, number in ((None, 1), ("key_1", 3))]
    snapshot = look(counts=[*counts, Count("model.n", "blue", None, 0, "in_files", 5)])
    for by, entries in (
        ("model", [("n", None, 5), ("m", None, 4)]),
        ("project", [("blue", None, 5), ("red", None, 4)]),
        ("key", [(None, "blue", 5), ("key_1", "red", 3), (None, "red", 1)]),
    ):
        assert [(each.id, each.project, each.unfinished) for each in backlog(snapshot, by, MODELS)] == entries


def test_a_suspect_that_waits_for_a_worker_of_its_own_is_not_left_behind() -> None:
    found = look(worker(), counts=[begun("released", suspects=1)], suspects=[Suspect(QUEUE, "resp_1", 2)])
    (only,) = told(found)
    assert only.code is Code.SUSPECTS
    assert "1 response of m " in only.text and "(resp_1, 2 crashes)" in only.text
    assert "`longhaul responses cancel resp_1 --reason" in only.advice


def test_rates_are_means_of_the_longest_time_of_a_worker() -> None:
    paces = [Pace(QUEUE, "w1", 90, 9000.0, 60.0), Pace(QUEUE, "w2", 30, 3000.0, 20.0)]
    found = totals(look(worker(), worker("w2"), paces=paces))
    assert (found.ended_per_second, found.tokens_per_second, found.pace_seconds) == (2.0, 200.0, 60.0)


def test_a_pause_says_since_when_by_whom_why_and_what_callers_get() -> None:
    (only,) = told(look(worker(), counts=[waiting(), RUNNING], pauses=[PAUSE]))
    assert only.text == (
        'Paused: m, since 2026-11-27 00:00:00 UTC, by night shift (key_1), because of "new driver".'
        " 5 responses of it wait."
    )
    assert "background requests are accepted and wait; new foreground requests get 503" in only.advice
    assert "`longhaul resume m`" in only.advice
    (only,) = told(look(worker(), counts=[waiting(1), waiting(4, "blue")], pauses=[PAUSED_RED]))
    assert "Paused: project team red in m" in only.text and "1 response of it waits." in only.text
    assert "`longhaul resume m --project red`" in only.advice


def test_a_worker_that_died_is_told_with_what_is_left_and_what_replaced_it() -> None:
    death = Death(QUEUE, "w0", NOW, 16, 1)
    others = (worker(started_at=NOW - timedelta(hours=1)), worker("w2", started_at=NOW + timedelta(seconds=9)))
    (only,) = told(look(*others, deaths=[death]))
    assert only.text == (
        "Worker w0 died at 2026-11-27 00:00:00 UTC: 15 responses of it went to other workers, 1 response still waits."
        " m has 2 workers ready now, w2 since 2026-11-27 00:00:09 UTC among them."
    )


def test_a_worker_that_lost_its_lease_and_came_back_did_not_die() -> None:
    death = Death(QUEUE, "w1", NOW, 16, 0)
    assert told(look(worker(), deaths=[death])) == []
    died = told(look(worker(lease_seconds=-1), worker("w2"), deaths=[death]))
    assert [each.code for each in died] == [Code.WORKER_DIED]


def test_a_drain_says_since_when_and_why_and_how_it_ends() -> None:
    (only,) = told(look(worker(draining_since=NOW, drain_reason="its fan", running=4), worker("w2")))
    assert (
        only.text == 'Worker w1 is draining since 2026-11-27 00:00:00 UTC, because of "its fan", and has 4 responses.'
    )
    assert "`longhaul undrain w1`" in only.advice
    (empty,) = told(look(worker(draining_since=NOW), worker("w2")))
    assert "is drained since" in empty.text and "has no responses any more" in empty.text


def test_a_class_that_waits_while_others_run_stands_still() -> None:
    counts = [waiting(), waiting(1, priority=FOREGROUND, seconds=31.0), RUNNING]
    (only,) = told(look(worker(), counts=counts))
    assert (only.code, only.text) == (
        Code.STANDS_STILL,
        "1 response of m, default, foreground, waits and none of that class runs; the oldest has waited for 31 s.",
    )


def test_a_class_does_not_stand_still_if_it_just_came_or_is_paused() -> None:
    young, old = (waiting(1, priority=FOREGROUND, seconds=seconds) for seconds in (29.0, 300.0))
    assert told(look(worker(), counts=[young, RUNNING])) == []
    paused = told(look(worker(), counts=[old, RUNNING], pauses=[PAUSED_RED]))
    assert [each.code for each in paused] == [Code.PAUSED]


def test_limits_that_are_used_up_are_named_with_their_values() -> None:
    full = LimitState("red", "*", LimitKind.REQUESTS_PER_MINUTE, 30, 29.5)
    (only,) = told(look(worker(), limits=[full]))
    assert only.text == (
        "1 limit is used up, and refuses requests with 429: requests_per_minute of project team red (30, 0 left)."
    )
    (many,) = told(look(worker(), limits=[full] * 5))
    assert many.text.startswith("5 limits are used up") and many.text.endswith("and 2 more.")


def test_webhook_endpoints_that_fail_are_named_with_their_project() -> None:
    failing = BadEndpoint("we_1", "red", NOW, 3 * 3600.0, is_disabled=False)
    (only,) = told(look(worker(), webhooks=Webhooks(failing=1, bad=[failing])))
    assert only.code is Code.WEBHOOKS_FAIL and CONDITIONS[only.code].grade is Grade.ATTENTION
    assert only.text == "1 webhook endpoint of a project fails: we_1 of project team red, for 3.0 h."
    disabled = replace(failing, failing_seconds=6 * 86400.0, is_disabled=True)
    (both,) = told(look(worker(), webhooks=Webhooks(failing=1, disabled=1, bad=[disabled, failing])))
    assert both.text.startswith("2 webhook endpoints of a project fail: we_1 of project team red, for 6 days, and is ")
    assert told(look(worker(), webhooks=Webhooks(failing=1))) == []
