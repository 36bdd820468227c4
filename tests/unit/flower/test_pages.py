"""Flower's pages where ours differ."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace

from celery.events.state import State, Task, Worker

from app.flower.engines import table
from app.flower.handlers import LonghaulTask, LonghaulWorkers
from app.operations.workers import seen
from app.store.queue.pauses import PauseRow
from tests.unit.operations.cases import QUEUE, worker

SINCE = datetime(2026, 11, 28, 3, 56, tzinfo=UTC)


def test_a_worker_that_is_offline_runs_nothing() -> None:
    living = Worker("w1", heartbeats=[time.time()], active=3)
    dead = Worker("w2", heartbeats=[1.0], active=3)
    assert [LonghaulWorkers._as_dict(each)["active"] for each in (living, dead)] == [3, 0]


def test_a_drained_worker_shows_since_when_and_why() -> None:
    workers = seen([worker(name="a", draining_since=SINCE, drain_reason="the <fan> is broken")], [])
    shown = table(workers, [])
    assert ">drained</span> <small>by an operator since 2026-11-28 03:56 UTC: the &lt;fan&gt; is broken<" in shown


def test_a_paused_model_shows_at_its_workers_with_its_reason_and_others_do_not() -> None:
    pauses = [
        PauseRow(QUEUE, None, "m", SINCE, "new driver", None),
        PauseRow(QUEUE, "proj_1", "m", SINCE, None, None),
        PauseRow("model.other", None, "other", SINCE, "not here", None),
    ]
    shown = table(seen([worker()], []), pauses)
    assert ">ready</span><br>" in shown
    assert ">paused</span> <small>since 2026-11-28 03:56 UTC: new driver<" in shown
    assert ">paused</span> <small>for proj_1 since 2026-11-28 03:56 UTC<" in shown
    assert "not here" not in shown


def task_page(**fields: float) -> Task:
    task = Task(
        "resp_1", State(), name="responses.generate", retries=0, exchange="", clock=7, root_id="resp_1", **fields
    )
    page = LonghaulTask.__new__(LonghaulTask)
    page.application = SimpleNamespace(options=SimpleNamespace(format_task=None))
    shown = page.format_task(task)
    assert (task.clock, task.sent) == (7, fields.get("sent"))
    return shown


def test_a_task_shows_nothing_of_celery_that_says_nothing_of_its_response() -> None:
    shown = task_page(sent=1.0, received=2.0, started=3.0)
    assert [getattr(shown, each) for each in ("retries", "exchange", "clock", "root", "children")] == [None] * 5
    assert (shown.uuid, shown.sent, shown.received, shown.started) == ("resp_1", 1.0, 2.0, 3.0)


def test_a_task_of_a_later_attempt_does_not_show_its_message_as_sent_after_its_start() -> None:
    shown = task_page(sent=5.0, received=6.0, started=3.0)
    assert (shown.sent, shown.received, shown.started) == (None, None, 3.0)
    assert task_page(received=6.0, started=3.0).received is None
