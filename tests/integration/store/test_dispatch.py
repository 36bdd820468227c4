"""Dispatching on a real Postgres: whose turn it is, its room, and what is sent at once.

The order and the workers: test_dispatch_model.py. What is sent again: test_redelivery.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.aio import BackgroundTasks
from app.dispatcher import Dispatcher
from app.queue.message import WEIGHTS, Priority
from app.queue.publisher import TaskQueue
from app.responses.create.creator import ResponseCreator
from app.scheduling.decisions import MAX_SENT, Sending
from app.store.database import Database
from app.store.queue import dispatch
from app.store.responses import lookup
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import estimated_cost
from app.store.rows import ResponseRow
from config.settings import load_settings
from tests.integration.store.common import held, placed, scalar, sql
from tests.support.rows import new_response
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE, drain, end, sent, take, waiting, weigh, with_slots


async def test_a_response_that_was_cut_short_is_charged_what_it_took_and_teaches_no_scale(
    db: Database, redis_url: str
) -> None:
    async def flow_of_a() -> tuple[float, float]:
        (row,) = await sql(db, "SELECT tag, scale FROM flows WHERE project = 'a'")
        return row.tag, row.scale

    await with_slots(db, 4)
    ids = await waiting(db, "a", 4, cost=1000)
    assert await sent(db) == ids
    await waiting(db, "b", 4)
    tag, scale = await flow_of_a()
    queue = TaskQueue(load_settings(REDIS_URL=redis_url))
    dispatcher = Dispatcher(db, queue)
    for response_id, used in zip(ids[:2], (0, 300), strict=True):
        row = await lookup.find(db, response_id)
        assert row is not None and row.charged == 1000
        dispatcher.correct_flow(row, used, cut_short=True)
    await end(db, ids)
    await dispatcher.dispatch(QUEUE)
    refund = (1000 + 700) / WEIGHTS[Priority.FOREGROUND]  # alone it has the weight of its tier
    assert await flow_of_a() == (pytest.approx(tag - refund), scale)
    await queue.close()


async def test_projects_get_tokens_by_their_weights_although_their_estimates_are_wrong(
    db: Database, redis_url: str
) -> None:
    """Each response of `a` takes four times its estimate, and each of `b` half of it."""
    await weigh(db, "a", 3.0)
    await with_slots(db, 4)
    await waiting(db, "a", 300)
    await waiting(db, "b", 450)
    used, taken = {"a": 400, "b": 50}, {"a": 0, "b": 0}
    queue = TaskQueue(load_settings(REDIS_URL=redis_url))
    dispatcher = Dispatcher(db, queue)
    for _ in range(60):
        await dispatcher.dispatch(QUEUE)
        ids = [row.id for row in await sql(db, "SELECT id FROM responses WHERE status = 'queued' AND sends > 0")]
        await end(db, ids)
        for row in await lookup.find_ended(db, ids):
            assert isinstance(row, ResponseRow)
            dispatcher.correct_flow(row, used[row.project], cut_short=False)
            taken[row.project] += used[row.project]
    await queue.close()
    assert taken["a"] / taken["b"] == pytest.approx(3.0, rel=0.1)


async def test_a_foreground_response_beyond_the_kept_places_is_dispatched_by_its_api_process(
    db: Database, redis_url: str
) -> None:
    """No worker claims anything here, and no maintenance runs."""
    queue = TaskQueue(load_settings(REDIS_URL=redis_url))
    creator = ResponseCreator(db, queue, Dispatcher(db, queue), BackgroundTasks(), lambda _: None)
    await with_slots(db, 4)
    await take(db, await waiting(db, "a", 4))
    none_waits = "SELECT count(*) = 0 FROM responses WHERE project = 'b' AND sends = 0"
    for _ in range(2):
        assert await creator.insert(replace(new_response(project="b"), priority=Priority.FOREGROUND)) is None
        await until(lambda: scalar(db, none_waits), what="it is sent")
    await creator.close()
    await queue.close()


async def test_the_clocks_of_api_processes_order_nothing(db: Database) -> None:
    now = datetime.now(UTC)
    ids = await waiting(db, "default")
    await with_slots(db, 4)
    for ahead in (timedelta(minutes=5), timedelta(), timedelta(minutes=-5)):
        new = replace(new_response(), created_at=now + ahead)
        await Inserter(db).create(new)
        ids.append(new.id)
    assert await sent(db) == ids
    row = await lookup.find(db, ids[-1])
    assert row is not None
    assert row.created_at == now - timedelta(minutes=5), "what the opening events say"


def test_an_estimate_is_bounded_and_counts_input_and_output() -> None:
    assert estimated_cost(4000, 50) == 1050
    assert estimated_cost(0, None) == 1024
    assert estimated_cost(2**40, None) == 2**31 - 1


async def test_the_workers_of_a_queue_are_its_own(db: Database) -> None:
    await waiting(db, "a", 20)
    ids = await waiting(db, "a", 3, queue="model.other")
    await with_slots(db, 8)
    await with_slots(db, 4, "other", "model.other")
    assert await dispatch.busy_queues(db) == ["model.other", QUEUE]
    await sent(db)
    assert await sent(db, queue="model.other") == ids
    assert await dispatch.busy_queues(db) == [QUEUE]


async def test_dispatches_at_once_send_each_response_once_and_no_more_than_there_is_room(db: Database) -> None:
    ids = await waiting(db, "a", 150)
    await with_slots(db, 50)
    taken: list[str] = []
    while len(taken) < 150:
        batches = await asyncio.gather(*(sent(db) for _ in range(6)))
        found = [each for batch in batches for each in batch]
        assert len(found) <= 50
        await end(db, found)
        taken += found
    assert sorted(taken) == sorted(ids)


async def test_a_response_that_is_being_ended_holds_up_no_dispatch(db: Database) -> None:
    first, second = await waiting(db, "a", 2)
    await with_slots(db, 4)
    async with held(db, first):
        assert await sent(db) == [second]
    assert await sent(db) == [first]


async def test_a_dispatch_sends_no_more_than_its_bound_and_the_next_one_the_rest(db: Database) -> None:
    ids = await waiting(db, "a", MAX_SENT + 6, window=7200.0)
    await with_slots(db, MAX_SENT + 6)
    assert len(await dispatch.dispatch(db, QUEUE) or ()) == MAX_SENT
    assert await sent(db) == ids[MAX_SENT:]


async def test_an_insert_into_a_line_that_has_gone_says_so_and_the_next_one_is_sent_at_once(db: Database) -> None:
    await with_slots(db, 1)
    sendings: dict[str, Sending] = {}
    inserter = Inserter(db, lambda new, sending: sendings.update({new.id: sending}))

    async def insert() -> Sending:
        new = new_response(queue=QUEUE)
        await inserter.create(new)
        return sendings[new.id]

    assert (await insert()).at_once
    assert [await insert() for _ in range(3)] == [Sending(False)] * 3, "the first by a look, the others behind it"
    await end(db, [*sendings])
    assert await insert() == Sending(False, is_first=True), "it has to be dispatched"
    await end(db, [*sendings])
    assert (await insert()).at_once
    await inserter.close()


async def test_a_response_is_sent_at_once_while_nobody_waits_and_the_workers_have_room(db: Database) -> None:
    await with_slots(db, 3)
    made = [new_response() for _ in range(5)]
    sendings = [*await placed(db, *made[:2]), *await placed(db, *made[2:])]
    assert [each.at_once for each in sendings] == [True, True, True, False, False]
    assert await scalar(db, "SELECT count(*) FROM responses WHERE sent_at IS NOT NULL AND sends = 1") == 3
    assert await scalar(db, "SELECT count(*) FROM responses WHERE sent_at IS NULL AND sends = 0") == 2
    assert await scalar(db, "SELECT count(charged) FROM responses") == 0, "nobody is charged for it"
    assert await scalar(db, "SELECT count(*) FROM flows") == 0
    assert not (await placed(db, new_response()))[0].at_once, "others wait"
    await end(db, [each.id for each in made])
    assert len(await drain(db, 1)) == 1
    assert (await placed(db, new_response()))[0].at_once


async def test_requests_that_share_an_insert_keep_their_order(db: Database) -> None:
    await waiting(db, "default")
    await with_slots(db, 8)
    made = [new_response() for _ in range(20)]
    assert not any(each.at_once for each in await placed(db, *made)), "others wait"
    assert (await sent(db))[1:] == [new.id for new in made][:7]
