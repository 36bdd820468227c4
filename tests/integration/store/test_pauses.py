"""What is paused stays in line, and nobody waits behind it: by inserts and by dispatches, on a real Postgres."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from app.protocol.errors import ModelPaused
from app.protocol.limits import LimitKind
from app.queue.message import Priority
from app.scheduling.decisions import Sending
from app.store.database import Database
from app.store.queue import pauses, redelivery
from app.store.responses import claims, lookup
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse
from app.store.rows import ResponseRow
from tests.integration.store.common import placed, sql
from tests.support.limited import limited_project, reserving, used
from tests.support.rows import new_response, released
from tests.support.waiting_rows import QUEUE, drain, sent, take, waiting, weigh, with_slots


async def pause(db: Database, project: str | None = None, queue: str = QUEUE) -> None:
    if project is not None:
        await weigh(db, project, 1)
    async with db.begin() as connection:
        assert await pauses.pause(connection, queue, project, "scripted", None, None)


async def resume(db: Database, project: str | None = None, queue: str = QUEUE) -> None:
    async with db.begin() as connection:
        assert await pauses.resume(connection, queue, project)


def foreground(project: str = "a") -> NewResponse:
    return replace(new_response(project=project), priority=Priority.FOREGROUND.value)


async def test_an_insert_that_joins_a_line_finds_out_that_only_what_is_paused_is_left_of_it(db: Database) -> None:
    await with_slots(db, 1)
    await waiting(db, "a", 1)
    joining: list[Sending] = []
    inserter = Inserter(db, lambda _, sending: joining.append(sending))
    await inserter.create(new_response(project="a"))
    await pause(db, "b")
    await waiting(db, "b", 5)
    await drain(db, 100)
    for _ in range(2):
        await inserter.create(new_response(project="a"))
        await drain(db, 100)
    await inserter.close()
    assert [each.at_once for each in joining] == [False, False, True]
    assert joining[1].is_first


@pytest.mark.parametrize("project", ["a", None])
async def test_a_foreground_response_of_what_is_paused_is_refused_and_takes_nothing_of_its_limits(
    db: Database, project: str | None
) -> None:
    await with_slots(db, 32)
    limited = await limited_project(db, **{LimitKind.UNFINISHED_RESPONSES.value: 5})
    await pause(db, limited if project else None)
    inserter = Inserter(db)
    new = replace(reserving(limited), priority=Priority.FOREGROUND.value)
    with pytest.raises(ModelPaused, match="background"):
        await inserter.create(new)
    assert await lookup.find(db, new.id) is None
    assert set((await used(db, limited)).values()) == {0.0}
    assert (await inserter.create(reserving(limited))) is not None, "the background is accepted"
    await inserter.close()


async def test_foreground_that_waited_before_the_pause_keeps_no_other_from_foreground_places(db: Database) -> None:
    await with_slots(db, 30)
    busy = await waiting(db, "z", 30)
    assert await sent(db) == busy
    await waiting(db, "b", 3, priority=Priority.FOREGROUND)
    await pause(db, "b")
    (sending,) = await placed(db, foreground("a"))
    assert (sending.at_once, sending.foreground_place) == (True, True)
    assert await sent(db) == []


async def test_what_has_begun_goes_on_while_it_is_paused_but_what_has_yielded_waits(db: Database) -> None:
    await with_slots(db, 8)
    taken_over, yielded = await waiting(db, "a", 2)
    await sent(db)
    await take(db, [taken_over, yielded])
    await pause(db, "a")
    for response_id, leave in ((taken_over, claims.release), (yielded, claims.yield_)):
        found = await lookup.find(db, response_id)
        assert isinstance(found, ResponseRow)
        assert await leave(db, response_id, found.attempt, "w")
    assert await released(db) == [taken_over]
    assert [each.response_id for each in await redelivery.take_released(db)] == [taken_over]
    assert await sent(db) == []
    await resume(db, "a")
    assert await sent(db) == [yielded]


async def test_a_message_that_was_lost_is_not_sent_again_while_it_is_paused(db: Database) -> None:
    await with_slots(db, 8)
    (lost,) = await waiting(db, "a", 1)
    assert await sent(db) == [lost]
    await pause(db)
    await sql(db, "UPDATE responses SET sent_at = now() - interval '1 hour'")
    assert await redelivery.put_back(db, 1.0) == [lost]
    assert await sent(db) == []


async def test_queues_with_many_paused_responses_are_looked_at_without_reading_them(db: Database) -> None:
    await with_slots(db, 8)
    for project in ("a", "c"):
        await pause(db, project)
        await waiting(db, project, 600)
    behind = await waiting(db, "b", 1)
    before = await fetched(db)
    assert await sent(db) == behind
    await placed(db, new_response(project="b"))
    assert await fetched(db) - before < 150


async def fetched(db: Database) -> int:
    async with db.autocommit() as connection:
        await connection.execute(text("SELECT pg_stat_force_next_flush()"))
        fetched = text("SELECT pg_stat_get_tuples_fetched(CAST('responses_waiting_idx' AS regclass))")
        return int((await connection.execute(fetched)).scalar_one())
