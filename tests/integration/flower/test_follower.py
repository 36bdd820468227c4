"""What Flower shows is what the rows say, whatever events came, were lost, or came twice."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from flower.events import EventsState
from sqlalchemy import text

from app.flower import follower as module
from app.flower.follower import Follower
from app.queue.message import TASK
from app.store.database import Database
from app.store.responses import claims, endings
from tests.support.rows import claim, queued, release_all
from tests.support.waiting_rows import waiting, with_slots

W1, W2 = "scripted-1@here", "scripted-2@here"
_clock = itertools.count(1)


class Flower:
    """Flower's memory, the events that it gets, and its follower."""

    def __init__(self, db: Database) -> None:
        self.state: Any = EventsState(max_tasks_in_memory=50)
        self.follower = Follower(db, self.state)

    def hear(self, kind: str, response_id: str, worker: str = W1, attempt: int = 1) -> None:
        now = time.time()
        event: dict[str, Any] = {"type": f"task-{kind}", "uuid": response_id, "hostname": worker, "pid": 1}
        event |= {"timestamp": now, "local_received": now, "clock": next(_clock), "utcoffset": 0}
        if kind in ("sent", "received"):
            event |= {"name": TASK, "args": f"default, background, attempt {attempt}", "kwargs": "{}"}
        self.state.event(event)

    def shown(self, response_id: str) -> tuple[str, str | None, str]:
        task = self.state.tasks.data[response_id]
        return task.state, task.worker and task.worker.hostname, task.args[-len("attempt 1") :]


@pytest.fixture(autouse=True)
def _every_event_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)


@pytest.fixture
async def flower(db: Database) -> Flower:
    for worker in (W1, W2):
        await with_slots(db, 4, worker)
    return Flower(db)


async def sent(db: Database, worker: str = W1) -> str:
    response_id = await queued(db)
    statement = "UPDATE responses SET sent_at = now(), sent_to = :worker, sends = 1 WHERE id = :id"
    await db.execute(text(statement), {"worker": worker, "id": response_id})
    return response_id


async def running(db: Database, worker: str = W1) -> str:
    response_id = await sent(db, worker)
    assert await claim(db, response_id, worker) is not None
    return response_id


async def test_a_flower_that_heard_nothing_shows_what_was_sent_what_runs_and_what_goes_on(
    db: Database, flower: Flower
) -> None:
    (waits,) = await waiting(db, "default")
    first, runs, released = await sent(db), await running(db), await running(db, W2)
    await release_all(db, W2)
    await flower.follower.look()
    assert flower.shown(first) == ("PENDING", W1, "attempt 1")
    assert flower.shown(runs) == ("STARTED", W1, "attempt 1")
    assert flower.shown(released)[::2] == ("RETRY", "attempt 2")
    assert waits not in flower.state.tasks.data
    task = flower.state.tasks.data[runs]
    assert task.name == TASK and task.started and task.received and "'project': 'default'" in task.kwargs


async def test_a_duplicate_message_to_another_worker_changes_nothing(db: Database, flower: Flower) -> None:
    response_id = await running(db)
    for worker in (W1, W2):
        for kind in ("sent", "received", "started"):
            flower.hear(kind, response_id, worker)
    assert flower.shown(response_id)[1] == W2, "the events alone say so"
    await flower.follower.look()
    assert flower.shown(response_id) == ("STARTED", W1, "attempt 1")


async def test_a_response_that_was_released_or_yielded_waits_for_another_attempt(db: Database, flower: Flower) -> None:
    response_ids = [await running(db) for _ in range(2)]
    for response_id in response_ids:
        flower.hear("received", response_id)
        flower.hear("started", response_id)
    await claims.release(db, response_ids[0], 1, W1, 0)
    await claims.yield_(db, response_ids[1], 1, W1)
    await flower.follower.look()
    assert [flower.shown(each)[::2] for each in response_ids] == [("RETRY", "attempt 2")] * 2


async def test_a_message_that_was_sent_again_is_with_its_new_worker(db: Database, flower: Flower) -> None:
    response_id = await sent(db, W1)
    flower.hear("received", response_id, W1)
    statement = text("UPDATE responses SET sent_to = :worker, sends = 2 WHERE id = :id")
    await db.execute(statement, {"worker": W2, "id": response_id})
    await flower.follower.look()
    assert flower.shown(response_id) == ("RECEIVED", W2, "attempt 1")


async def test_ends_whose_events_were_lost_are_shown_with_time_and_error(db: Database, flower: Flower) -> None:
    failed, cancelled, deleted = [await running(db) for _ in range(3)]
    await flower.follower.look()
    await endings.fail(db, failed, "server_error", "it went wrong")
    await endings.cancel(db, cancelled, None)
    await endings.delete(db, "default", deleted)
    await flower.follower.look()
    assert [flower.shown(each)[0] for each in (failed, cancelled, deleted)] == ["FAILURE", "REVOKED", "REVOKED"]
    task = flower.state.tasks.data[failed]
    assert task.exception == "ResponseFailed('server_error', 'it went wrong')"
    assert task.failed >= task.started and task.runtime == pytest.approx(task.failed - task.started, abs=1e-3)


async def test_an_end_that_an_event_told_wrongly_is_corrected(db: Database, flower: Flower) -> None:
    """Maintenance fails what ran too long, and its worker reports that it was revoked."""
    response_id = await running(db)
    await flower.follower.look()
    await endings.fail(db, response_id, "run_timeout", "it ran too long")
    flower.hear("revoked", response_id)
    assert flower.shown(response_id)[0] == "REVOKED"
    await flower.follower.look()
    assert flower.shown(response_id)[0] == "FAILURE"


async def test_an_event_that_is_newer_than_the_row_stands_until_the_next_look(
    db: Database, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    response_id = await running(db)
    flower.hear("received", response_id)
    flower.hear("succeeded", response_id)
    monkeypatch.setattr(module, "SETTLE_SECONDS", 3600.0)
    await flower.follower.look()
    assert flower.shown(response_id)[0] == "SUCCESS"
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    await flower.follower.look()
    assert flower.shown(response_id)[0] == "STARTED"


async def test_what_runs_is_not_dropped_from_a_full_memory(db: Database, flower: Flower) -> None:
    response_id = await running(db)
    for n in range(5):
        await flower.follower.look()
        for each in range(40):
            flower.hear("received", f"resp_{n}_{each}")
            flower.hear("succeeded", f"resp_{n}_{each}")
    await flower.follower.look()
    assert flower.shown(response_id)[0] == "STARTED"
    assert len(flower.state.tasks) == len(flower.state.search_engine.documents) == 50


async def test_flower_finds_what_only_a_row_told_it(db: Database, flower: Flower) -> None:
    response_id = await running(db)
    await flower.follower.look()
    found = flower.state.search_engine.search(flower.state.tasks, "kwargs:project=default state:STARTED")
    assert response_id in found.task_ids
