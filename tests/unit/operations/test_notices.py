"""What needs attention although nothing is broken: each notice, without a database."""

from __future__ import annotations

from datetime import timedelta

from app.operations.notices import Names, Notice, NoticeCode, notices
from app.operations.summary import ModelSummary
from app.protocol.limits import LimitKind, LimitState
from app.store.operations.casualties import Death
from app.store.queue.fleet import Flow
from app.store.queue.pauses import PauseRow
from app.store.queue.worker_rows import WorkerRow
from app.store.tenants.full_limits import FullLimit
from tests.unit.operations.cases import BACKGROUND, FOREGROUND, NOW, QUEUE, worker
from tests.unit.operations.test_problems import begun, summary

NAMES = Names({"red": "team red"}, {"key_1": "night shift"})
PAUSE = PauseRow(QUEUE, None, "m", NOW, "new driver", "key_1")
RUNNING = [begun("running", 8)]


def told(
    model: ModelSummary,
    *workers: WorkerRow,
    deaths: tuple[Death, ...] = (),
    pauses: tuple[PauseRow, ...] = (),
    limits: tuple[FullLimit, ...] = (),
) -> list[Notice]:
    return notices([model], workers, deaths, pauses, limits, NAMES)


def test_a_busy_deployment_needs_no_attention() -> None:
    assert told(summary(worker(), flows=[Flow(QUEUE, "red", BACKGROUND, 5, 600.0)], begun=RUNNING), worker()) == []


def test_a_pause_says_since_when_by_whom_why_and_what_callers_get() -> None:
    model = summary(worker(), flows=[Flow(QUEUE, "red", BACKGROUND, 5, 60.0)], begun=RUNNING, pauses={(QUEUE, None)})
    (only,) = told(model, worker(), pauses=(PAUSE,))
    assert only.code is NoticeCode.PAUSED
    assert only.text == (
        'Paused: m, since 2026-11-27 00:00:00 UTC, by night shift (key_1), because of "new driver".'
        " 5 responses of it wait."
    )
    assert "background requests are accepted and wait; new foreground requests get 503" in only.advice
    assert "`longhaul resume m`" in only.advice
    assert (model.paused, model.is_paused, model.empty_in_seconds) == (5, True, None)


def test_a_worker_that_died_is_told_with_what_is_left_and_what_replaced_it() -> None:
    death = Death(QUEUE, "w0", NOW, 16, 1)
    others = (worker(started_at=NOW - timedelta(hours=1)), worker("w2", started_at=NOW + timedelta(seconds=9)))
    (only,) = told(summary(*others), *others, deaths=(death,))
    assert only.text == (
        "Worker w0 died at 2026-11-27 00:00:00 UTC: 15 responses of it went to other workers, 1 response still waits."
        " m has 2 workers ready now, w2 since 2026-11-27 00:00:09 UTC among them."
    )


def test_a_worker_that_lost_its_lease_and_came_back_did_not_die() -> None:
    death = Death(QUEUE, "w1", NOW, 16, 0)
    assert told(summary(worker()), worker(), deaths=(death,)) == []
    assert [each.code for each in told(summary(), worker(lease_seconds=-1), deaths=(death,))] == ["worker_died"]


def test_a_drain_says_since_when_and_why_and_how_it_ends() -> None:
    drained = worker(draining_since=NOW, drain_reason="its fan", running=4)
    (only,) = told(summary(drained, worker("w2")), drained, worker("w2"))
    assert (
        only.text == 'Worker w1 is draining since 2026-11-27 00:00:00 UTC, because of "its fan", and has 4 responses.'
    )
    assert "`longhaul undrain w1`" in only.advice
    (empty,) = told(summary(worker("w2")), worker(draining_since=NOW))
    assert "is drained since" in empty.text and "has no responses any more" in empty.text


def test_a_class_that_waits_while_others_run_stands_still() -> None:
    flows = [Flow(QUEUE, "red", BACKGROUND, 5, 60.0), Flow(QUEUE, "red", FOREGROUND, 1, 31.0)]
    (only,) = told(summary(worker(), flows=flows, begun=RUNNING), worker())
    assert (only.code, only.text) == (
        NoticeCode.STANDS_STILL,
        "1 response of m, default, foreground, waits and none of that class runs; the oldest has waited for 31 s.",
    )


def test_a_class_does_not_stand_still_if_it_just_came_or_is_paused() -> None:
    young = [Flow(QUEUE, "red", FOREGROUND, 1, 29.0)]
    old = [Flow(QUEUE, "red", FOREGROUND, 1, 300.0)]
    assert told(summary(worker(), flows=young, begun=RUNNING), worker()) == []
    assert told(summary(worker(), flows=old, begun=RUNNING, pauses={(QUEUE, "red")}), worker()) == []
    assert told(summary(worker(slots=0), flows=old, begun=RUNNING)) == []


def test_limits_that_are_used_up_are_named_with_their_values() -> None:
    full = FullLimit("red", "team red", LimitState("red", "*", LimitKind.REQUESTS_PER_MINUTE, 30, 29.5))
    (only,) = told(summary(worker()), worker(), limits=(full,))
    assert only.text == (
        "1 limit is used up, and refuses requests with 429: requests_per_minute of project team red (30, 0 left)."
    )
    (many,) = told(summary(worker()), worker(), limits=(full,) * 5)
    assert many.text.startswith("5 limits are used up") and many.text.endswith("and 2 more.")
