"""Dispatching on a real Postgres: the order of the queue, its shares, its room, and what costs nobody anything."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from app.dispatcher import Dispatcher
from app.queue.message import FOREGROUND, WEIGHTS, Priority
from app.queue.publisher import TaskQueue
from app.scheduling.decisions import MAX_SENT, Sending
from app.store.database import Database
from app.store.layout import LAYOUT
from app.store.queue import dispatch, redelivery
from app.store.responses import claims, endings, lookup
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse, estimated_cost
from config.settings import load_settings
from tests.support.limited import limited_project, reserving
from tests.support.rows import new_response
from tests.support.services import AS_OWNER
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE, drain, end, sent, waiting, with_slots


async def scalar(db: Database, statement: str) -> int:
    async with db.autocommit() as connection:
        return int((await connection.execute(text(statement))).scalar_one())


async def test_postgres_and_python_have_the_same_classes_of_the_foreground(db: Database) -> None:
    """Views and statements name their numbers."""
    definition = "SELECT pg_get_viewdef('worker_loads')"
    async with db.autocommit() as connection:
        assert "1, 3, 8" in (await connection.execute(text(definition))).scalar_one()
    assert FOREGROUND == (1, 3, 8)


# Order and shares


async def test_flows_that_are_forgotten_change_nothing(db: Database) -> None:
    orders = []
    for forgets in (False, True):
        async with db.begin() as connection:
            await connection.execute(text(AS_OWNER))
            await connection.execute(text("TRUNCATE responses, flows, queues, workers CASCADE"))
        await with_slots(db, 4)
        for project, cost in (("a", 100), ("b", 70), ("c", 350)):
            await waiting(db, project, 60, cost=cost)
        order = []
        while ids := await drain(db, 4):
            order += [each.split("-")[1] + each[0] for each in ids]
            if forgets:
                await dispatch.forget_idle_flows(db)
        orders.append(order)
    assert orders[0] == orders[1]


async def test_a_response_that_was_cut_short_is_charged_what_it_took_and_teaches_no_scale(
    db: Database, redis_url: str
) -> None:
    await with_slots(db, 4)
    ids = await waiting(db, "a", 4, cost=1000)
    assert await sent(db) == ids
    await waiting(db, "b", 4)
    before = await flow_of_a(db)
    dispatcher = Dispatcher(db, TaskQueue(load_settings(REDIS_URL=redis_url)))
    for response_id, used in zip(ids[:2], (0, 300), strict=True):
        row = await lookup.find(db, response_id)
        assert row is not None and row.charged == 1000
        dispatcher.correct_flow(row, used, cut_short=True)
    await end(db, ids)
    await dispatcher._dispatch_once(QUEUE)
    refund = (1000 + 700) / WEIGHTS[Priority.FOREGROUND]  # alone it has the weight of its tier
    assert await flow_of_a(db) == (pytest.approx(before[0] - refund), before[1])


async def flow_of_a(db: Database) -> tuple[float, float]:
    """Its tag and its scale."""
    (row,) = await db.execute(text("SELECT tag, scale FROM flows WHERE project = 'a'"))
    return row.tag, row.scale


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


# The room


async def test_the_workers_of_a_queue_are_its_own(db: Database) -> None:
    await waiting(db, "a", 100)
    ids = await waiting(db, "a", 3, queue="model.other")
    await with_slots(db, 8)
    await with_slots(db, 4, "other", "model.other")
    assert await dispatch.busy_queues(db) == ["model.other", QUEUE]
    await sent(db)
    assert await sent(db, queue="model.other") == ids
    assert await dispatch.busy_queues(db) == [QUEUE]


async def test_dispatches_at_once_send_each_response_once_and_no_more_than_there_is_room(db: Database) -> None:
    ids = await waiting(db, "a", 300)
    await with_slots(db, 100)
    taken: list[str] = []
    while len(taken) < 300:
        batches = await asyncio.gather(*(sent(db) for _ in range(6)))
        found = [each for batch in batches for each in batch]
        assert len(found) <= 100
        await end(db, found)
        taken += found
    assert sorted(taken) == sorted(ids)


async def test_a_response_that_is_being_ended_holds_up_no_dispatch(db: Database) -> None:
    first, second = await waiting(db, "a", 2)
    await with_slots(db, 4)
    async with db.begin() as connection:
        await connection.execute(text("SELECT id FROM responses WHERE id = :id FOR UPDATE"), {"id": first})
        assert await sent(db) == [second]
    assert await sent(db) == [first]


@pytest.mark.parametrize("known", [0, 200, 2000])
async def test_a_dispatch_reads_by_index_whatever_the_statistics_say(db: Database, known: int) -> None:
    """The statistics are of a time when only so many responses waited."""
    for number in range(50):
        if number * 200 == known:
            async with db.autocommit() as connection:
                await connection.execute(text("VACUUM ANALYZE responses"))
        await waiting(db, f"p{number}", 200)
    await with_slots(db, 2 * MAX_SENT)
    await sent(db)
    most = {"most": MAX_SENT, "foreground_most": 2 * MAX_SENT, "foreground": True}
    values = {"queue": QUEUE, "virtual_time": 0.0, "layout": LAYOUT, **most}
    async with db.begin() as connection:
        await connection.execute(dispatch._LOCK, {"queue": QUEUE})
        explained = text(f"EXPLAIN {dispatch._FACTS.text}")
        plan = "\n".join((await connection.execute(explained, values)).scalars())
    assert indexes_read(plan, "responses") == {"responses_waiting_idx", "responses_sent_idx", "responses_pkey"}
    assert "Scan on responses" not in plan
    assert re.search(r"flows_pkey on flows f .*\n *Index Cond: .*project = b", plan), "not all with all"


def indexes_read(plan: str, table: str) -> set[str]:
    return set(re.findall(rf"using (\w+) on {table}\b", plan))


# Inserts


class Sender:
    """Inserts responses; notes which of them are to be sent at once."""

    def __init__(self, db: Database) -> None:
        self.sent: list[str] = []
        self._inserter = Inserter(db, self._note)

    def _note(self, new: NewResponse, sending: Sending) -> None:
        if sending.at_once:
            self.sent.append(new.id)

    async def insert(self, *made: NewResponse) -> list[str]:
        """Returns the ids of those of them that are to be sent."""
        await asyncio.gather(*map(self._inserter.create, made))
        return [new.id for new in made if new.id in self.sent]


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
    sender = Sender(db)
    made = [new_response() for _ in range(5)]
    assert len(await sender.insert(*made[:2])) == 2
    assert len(await sender.insert(*made[2:])) == 1
    assert await scalar(db, "SELECT count(*) FROM responses WHERE sent_at IS NOT NULL AND sends = 1") == 3
    assert await scalar(db, "SELECT count(*) FROM responses WHERE sent_at IS NULL AND sends = 0") == 2
    assert await sender.insert(new_response()) == [], "others wait"
    await end(db, sender.sent)
    await end(db, await sent(db))
    assert len(await Sender(db).insert(new_response())) == 1, "a process that has seen nobody wait looks first"


async def test_requests_that_share_an_insert_keep_their_order(db: Database) -> None:
    await waiting(db, "default")
    await with_slots(db, 8)
    made = [new_response() for _ in range(20)]
    assert await Sender(db).insert(*made) == [], "others wait"
    assert (await sent(db))[1:] == [new.id for new in made][:7]


async def test_what_is_sent_at_once_is_charged_to_nobody(db: Database) -> None:
    await with_slots(db, 8)
    await Sender(db).insert(*(new_response() for _ in range(8)))
    assert await scalar(db, "SELECT count(*) FROM responses WHERE charged IS NULL") == 8
    assert await scalar(db, "SELECT count(*) FROM flows") == 0


async def test_a_response_of_a_project_with_limits_waits_as_others_do_and_comes_in_its_turn(db: Database) -> None:
    limited = await limited_project(db, requests_per_minute=100)
    await with_slots(db, 2)
    sender = Sender(db)
    at_once = reserving(limited)
    assert await sender.insert(at_once) == [at_once.id], "nobody waits"
    await end(db, [at_once.id])
    others = await waiting(db, "a", 4)
    late = [reserving(limited), reserving(limited)]
    assert await sender.insert(*late) == [], "others wait"
    assert await scalar(db, "SELECT count(*) FROM responses WHERE sent_at IS NULL AND sends = 0") == 6
    taken = await drain(db, 6)
    ids = [new.id for new in late]
    assert set(taken[:2]) & set(ids) and others[0] in taken[:2], "each flow has its turn"
    assert sorted(taken) == sorted([*others, *ids])


# Lost messages, released and claimed responses


LOST = 1000.0
"""After so many seconds a message counts as lost: more than any test takes, and less than `_age` adds."""


async def _age(db: Database, *ids: str) -> None:
    async with db.autocommit() as connection:
        statement = "UPDATE responses SET sent_at = sent_at - interval '1 hour' WHERE id = ANY(:ids)"
        await connection.execute(text(statement), {"ids": list(ids)})


async def test_lost_messages_wait_again_and_are_sent_in_their_order_and_charged_once(db: Database) -> None:
    await with_slots(db, 16)
    ids = await waiting(db, "a", 32)
    lost = await sent(db)
    tag = "SELECT CAST(tag AS int) FROM flows"
    charged = await scalar(db, tag)
    await _age(db, *lost)
    assert sorted(await redelivery.put_back(db, LOST)) == sorted(lost)
    assert await redelivery.put_back(db, LOST) == []
    assert await redelivery.resend_counts(db, LOST) == []
    await with_slots(db, 7, "another")  # the first keeps nine of its slots
    assert await sent(db) == lost == ids[:16]
    assert await scalar(db, tag) == charged


async def test_what_waits_is_not_taken_for_lost(db: Database) -> None:
    ids = await waiting(db, "a", 20)
    async with db.autocommit() as connection:
        await connection.execute(text("UPDATE responses SET created_at = created_at - interval '1 day'"))
    assert await redelivery.put_back(db, LOST) == []
    await with_slots(db, 8)
    assert (await sent(db)) == ids[:8]
    assert await redelivery.put_back(db, LOST) == []


async def test_a_response_can_be_claimed_cancelled_and_failed_while_it_waits(db: Database) -> None:
    first, second, third = await waiting(db, "a", 3)
    await with_slots(db, 4)
    (row,) = await claims.claim_all(db, [(first, "w")])
    assert row is not None
    cancelled = await endings.cancel(db, second, "a")
    assert cancelled is not None and cancelled.chunk is not None
    assert await endings.fail(db, third, "queue_timeout", "late") is not None
    assert await sent(db) == []


async def test_a_dispatch_waits_for_the_one_before_and_sees_what_it_did(db: Database) -> None:
    await with_slots(db, 8)
    ids = await waiting(db, "a", 20)
    async with db.begin() as holder:
        await holder.execute(dispatch._LOCK, {"queue": QUEUE})
        late = asyncio.create_task(dispatch.dispatch(db, QUEUE))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: scalar(db, waits), what="the dispatch waits")
        mark = "UPDATE responses SET sent_at = now(), sent_to = 'w' WHERE id = ANY(:ids)"
        await holder.execute(text(mark), {"ids": ids[:8]})
    assert await late == []
