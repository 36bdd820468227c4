"""The steps of the maintenance loop on real Postgres and Valkey, with a queue that only records."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from app.dispatcher import Dispatcher
from app.maintenance.loop import Maintenance
from app.protocol.status import Status
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable
from app.store.database import Database
from app.store.operations import snapshot
from app.store.responses import claims, endings, logs, lookup
from app.store.responses.inserts import Inserter
from app.store.roles import rights
from app.store.roles.rights import MAINTENANCE
from app.streaming.pubsub import PubSub
from config.settings import Settings
from tests.support.limited import limited_project, reserving
from tests.support.logs import events_of, row_of, text_of, whole
from tests.support.maintenance import maintenance_of
from tests.support.requests import message
from tests.support.roles import as_role
from tests.support.rows import WORKER, Writer, alive, claim, claimed, new_response, queued
from tests.support.waiting import until
from tests.support.waiting_rows import end, waiting, with_slots
from tests.support.worker import worker
from workers.generation.outcome import Outcome


class Queue:
    """Records messages instead of sending them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.revoked: list[str] = []
        self.away = False

    async def enqueue(self, *messages: Message) -> None:
        if self.away:
            raise QueueUnavailable("away")
        self.sent += [message.response_id for message in messages]

    async def revoke(self, *response_ids: str) -> None:
        self.revoked += response_ids


def maintenance(
    db: Database, pubsub: PubSub, queue: Queue, lost_seconds: float = 10.0, round_seconds: float = 1.0, **settings: Any
) -> Maintenance:
    made = Settings(**{"max_crashes": 2, "lease_seconds": 1.0, **settings})
    own = as_role(db, MAINTENANCE)
    return maintenance_of(made, own, pubsub, queue, round_seconds=round_seconds, lost_seconds=lost_seconds)


async def age(db: Database, column: str) -> None:
    await db.execute(text(f"UPDATE responses SET {column} = {column} - interval '1 hour'"))


async def test_what_waits_is_sent_when_there_is_room_and_no_worker_sends_it(db: Database, pubsub: PubSub) -> None:
    ids = await waiting(db, "a", 20)
    queue = Queue()
    await maintenance(db, pubsub, queue).dispatch()
    assert queue.sent == [], "nobody would take it"
    await with_slots(db, 15)
    await maintenance(db, pubsub, queue).dispatch()
    assert queue.sent == ids[:15]
    await end(db, ids[:1])
    await maintenance(db, pubsub, queue).dispatch()
    assert queue.sent == ids[:16]


async def test_after_redis_was_emptied_all_that_was_sent_is_sent_again_in_order(db: Database, pubsub: PubSub) -> None:
    ids = await waiting(db, "a", 40)
    await with_slots(db, 16)
    await maintenance(db, pubsub, Queue()).dispatch()
    queue = Queue()
    emptied = maintenance(db, pubsub, queue)
    await age(db, "sent_at")
    await emptied.redeliver()
    await with_slots(db, 7, "another")  # the first keeps half of its slots, 9 of 17, and none for the foreground
    await emptied.dispatch()
    assert queue.sent == ids[:16]
    await end(db, ids[:16])
    await emptied.dispatch()
    assert queue.sent == ids[:32]


async def dispatched(steps: Maintenance) -> None:
    """What was lost waits again, and is sent."""
    await steps.redeliver()
    await steps.dispatch()


async def test_copies_of_maintenance_share_the_messages_to_send(db: Database, pubsub: PubSub) -> None:
    await with_slots(db, 100)
    ids = {await queued(db) for _ in range(50)}
    await age(db, "sent_at")
    queue = Queue()
    await asyncio.gather(*(dispatched(maintenance(db, pubsub, queue)) for _ in range(4)))
    await maintenance(db, pubsub, queue).dispatch()
    assert sorted(queue.sent) == sorted(ids)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ({"queue_seconds": 0.001}, "queue_timeout"),
        ({"run_seconds": 0.001}, "run_timeout"),
        ({"window_seconds": 0.001, "priority": 10}, "completion_window_expired"),
    ],
)
async def test_an_overdue_response_fails_and_its_timeout_is_the_reason(
    db: Database, pubsub: PubSub, limit: dict[str, float], code: str
) -> None:
    new = replace(new_response(), **limit)  # type: ignore[arg-type]
    await Inserter(db).create(new)
    if code == "run_timeout":
        await claim(db, new.id, WORKER)
    assert (await snapshot.read(db, 3600.0)).late.deadlines > 0, "as long as maintenance is away"
    queue = Queue()
    await maintenance(db, pubsub, queue).expire()
    final = await whole(db, new.id, Status.FAILED)
    assert final.error is not None
    assert (final.error["code"], final.error["reason"]) == ("server_error", code)
    assert queue.revoked == ([new.id] if code == "run_timeout" else []), "its worker need not wait for the fence"


async def test_a_response_that_workers_began_too_often_is_failed(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "find_exhausted", partial(endings.find_exhausted, max_claims=1))
    row = await claimed(db)
    steps = maintenance(db, pubsub, Queue())
    await steps.fail_exhausted()
    assert (await row_of(db, row.id)).status is Status.IN_PROGRESS, "it runs"
    await claims.release(db, row.id, row.attempt, WORKER)
    await steps.fail_exhausted()
    await whole(db, row.id, Status.FAILED)


@pytest.mark.parametrize("waits", [False, True])
async def test_the_response_of_a_dead_worker_goes_on_in_another_worker_at_once_or_when_there_is_one(
    db: Database, pubsub: PubSub, *, waits: bool
) -> None:
    await alive(db, lease_seconds=0.0)
    if not waits:
        await alive(db, "another")
    row = await claimed(db, input=[message("/say still here")])
    queue = Queue()
    steps = maintenance(db, pubsub, queue)
    await steps.release_dead_workers()
    metrics = steps.metrics
    assert [each.collect()[0].samples[0].value for each in (metrics.dead_workers, metrics.lost_attempts)] == [1, 1]
    if waits:
        assert not queue.sent
        await alive(db, "another")
        await steps.send_released()
    assert queue.sent == [row.id]
    async with worker(db, pubsub) as w:
        assert await w.run(row.id) is Outcome.COMPLETED
    final = await whole(db, row.id)
    assert (text_of(final), final.attempt, final.crashes) == ("still here", 2, 1)


async def test_a_worker_that_has_slots_again_sends_what_was_released_meanwhile(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    queue = Queue()
    dispatcher = Dispatcher(as_role(db, rights.WORKER), queue)  # type: ignore[arg-type]
    await dispatcher.send_released()
    assert not queue.sent, "nobody has a slot"
    await alive(db, "another")
    dispatcher.nudge_all(row.queue)
    await until(lambda: queue.sent == [row.id])
    await dispatcher.close()


async def test_a_response_that_crashes_its_workers_fails_and_its_error_says_why(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    steps = maintenance(db, pubsub, Queue())
    for name in (WORKER, "second"):
        await alive(db, name, lease_seconds=0.0)
        await steps.release_dead_workers()
        await claim(db, row.id, "second")
    final = await whole(db, row.id, Status.FAILED)
    assert final.error is not None
    assert "crashed 2 times" in final.error["message"]


async def test_no_message_is_lost_while_the_queue_is_away(db: Database, pubsub: PubSub) -> None:
    await with_slots(db, 4)
    response_id = await queued(db)
    await age(db, "sent_at")
    queue = Queue()
    queue.away = True
    with pytest.raises(QueueUnavailable):
        await dispatched(maintenance(db, pubsub, queue))
    queue.away = False
    await age(db, "sent_at")
    await dispatched(maintenance(db, pubsub, queue))
    assert queue.sent == [response_id]


async def test_sweeping_merges_logs_then_deletes_events_then_rows(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db)
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    events = await events_of(db, response_id)
    await age(db, "finished_at")
    await db.execute(text("UPDATE responses SET log = 'live'"))  # as that of a longer one
    await maintenance(db, pubsub, Queue()).sweep()
    assert (await row_of(db, response_id)).log == "merged"
    assert await events_of(db, response_id) == events
    await maintenance(db, pubsub, Queue(), event_retention_seconds=60.0).sweep()
    assert (await row_of(db, response_id)).log == "deleted"
    await maintenance(db, pubsub, Queue(), stored_retention_seconds=60.0).sweep()
    assert await lookup.find(db, response_id) is None


async def test_usage_and_settlements_are_added_up(db: Database, pubsub: PubSub) -> None:
    await limited_project(db, unfinished_responses=5)
    new = reserving()
    await Inserter(db).create(new)
    await endings.cancel(db, new.id, None)
    finished = await claimed(db)
    writer = Writer(finished)
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.finish()])
    await maintenance(db, pubsub, Queue()).add_up()
    async with db.begin() as connection:
        counts = {
            table: (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
            for table in ("settlements", "usage_entries", "usage")
        }
        assert counts == {"settlements": 0, "usage_entries": 0, "usage": 1}
        assert (await connection.execute(text("SELECT used FROM limits"))).scalar_one() == 0
