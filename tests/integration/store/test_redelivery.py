"""Redelivery on a real Postgres: what is sent again, and when. test_placement.py has where it goes."""

from __future__ import annotations

from app.scheduling.decisions import TRIALS_AT_ONCE
from app.store.database import Database
from app.store.queue import redelivery as messages
from app.store.responses import claims, endings
from tests.integration.store.common import scalar, sql
from tests.support.rows import WORKER, alive, claim, claimed, crashed, long_alive, queued, release_all

LOST = 1000.0
"""After so many seconds a message counts as lost: more than any test takes."""


async def sent(db: Database, seconds_ago: float, sends: int = 1) -> str:
    """A response that was sent to a living worker."""
    await alive(db)
    response_id = await queued(db)
    sent = "UPDATE responses SET sends = :sends, sent_at = now() - make_interval(secs => :ago) WHERE id = :id"
    await sql(db, sent, sends=sends, ago=seconds_ago, id=response_id)
    return response_id


async def lost(db: Database) -> list[str]:
    return list(await messages.put_back(db, LOST))


async def test_what_was_sent_long_ago_and_not_claimed_waits_again(db: Database) -> None:
    await sent(db, 0.0)
    old = await sent(db, 1.5 * LOST)
    assert await lost(db) == [old]
    assert await lost(db) == []


async def test_a_lost_message_is_noticed_although_the_clock_of_postgres_went_back(db: Database) -> None:
    """It was sent at a time that is still to come."""
    sent_before_the_jump = await sent(db, -3600.0)
    await sent(db, 0.0)
    assert await lost(db) == [sent_before_the_jump]
    assert await lost(db) == []


async def test_the_wait_before_a_redelivery_doubles_each_time(db: Database) -> None:
    await sent(db, 3.5 * LOST, sends=3)
    assert await lost(db) == []
    patient = await sent(db, 4.5 * LOST, sends=3)
    assert await lost(db) == [patient]


async def test_a_foreground_response_keeps_its_place_only_if_it_was_released(db: Database) -> None:
    waits, goes_on = await sent(db, 1.5 * LOST), (await claimed(db)).id
    await claims.release(db, goes_on, 1, WORKER)
    place = "UPDATE responses SET priority = 3, foreground_place = true, sent_to = :worker, sent_at = now()"
    await sql(db, place, worker=WORKER)
    await sql(db, "UPDATE responses SET sent_at = now() - interval '1 day'")
    assert sorted(await lost(db)) == sorted([waits, goes_on])
    found = await sql(db, "SELECT id, foreground_place FROM responses")
    assert {row.id: row.foreground_place for row in found} == {waits: False, goes_on: True}


async def test_a_released_response_is_sent_at_once_and_only_once(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    assert await taken(db) == [], "nobody would take it"
    await alive(db)
    assert await taken(db) == [row.id]
    assert await taken(db) == []


async def test_responses_of_a_model_without_workers_keep_no_other_model_waiting(db: Database) -> None:
    for _ in range(3):
        await released_in(db, "away")
    here = await claimed(db)
    await claims.release(db, here.id, here.attempt, WORKER)
    await alive(db)
    assert [message.response_id for message in await messages.take_released(db, limit=2)] == [here.id]


async def released_in(db: Database, model: str) -> None:
    """A released response of that model."""
    row = await claimed(db, model=model)
    await claims.release(db, row.id, row.attempt, WORKER)


async def taken(db: Database) -> list[str]:
    return [message.response_id for message in await messages.take_released(db)]


async def suspects(db: Database, *anywhere: str) -> list[str]:
    return [message.response_id for message in await messages.take_suspects(db, anywhere)]


async def test_suspects_go_a_few_at_a_time_to_a_worker_without_others_work(db: Database) -> None:
    waiting = [await crashed(db) for _ in range(TRIALS_AT_ONCE + 2)]
    assert await suspects(db) == [], "nobody lives"
    await long_alive(db, "w")
    assert await taken(db) == []
    assert sorted(await suspects(db)) == sorted(waiting[:-2])
    assert await suspects(db) == []
    assert await messages.queues_of_suspects(db) == {"model.scripted"}
    await endings.cancel(db, waiting[0], None)
    assert await suspects(db) == waiting[-2:-1]


async def test_a_suspect_goes_to_no_worker_with_others_work_unless_it_has_just_started_or_there_is_no_other(
    db: Database,
) -> None:
    await long_alive(db, "busy")
    await claim(db, await queued(db), "busy")
    suspect = await crashed(db)
    assert await suspects(db) == []
    await alive(db, "new")
    await claim(db, await queued(db), "new")
    (message,) = await messages.take_suspects(db, ())
    assert message.response_id == suspect
    assert await scalar(db, "SELECT sent_to FROM responses WHERE id = :id", id=suspect) == "new"
    await claim(db, suspect, "new")
    await release_all(db, "new")
    await sql(db, "DELETE FROM workers WHERE id = 'new'")
    assert await suspects(db, "model.another") == []
    assert suspect in await suspects(db, "model.scripted")
