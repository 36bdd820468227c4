"""Redelivery on a real Postgres: which messages are sent again, and when."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.queue.message import Priority, list_of
from app.store.database import Database
from app.store.queue import redelivery as messages
from app.store.responses import claims, endings, lookup
from tests.support.rows import WORKER, alive, claim, claimed, queued, release_all


async def status_of(db: Database, response_id: str) -> Status:
    row = await lookup.find(db, response_id)
    assert row is not None
    return row.status


LIST = messages.BrokerList("model.scripted", "model.scripted")
LOST = 1000.0
"""After so many seconds a message counts as lost: more than any test takes."""


async def sent(db: Database, seconds_ago: float, sends: int = 1) -> str:
    response_id = await queued(db)
    async with db.begin() as connection:
        await connection.execute(
            text("UPDATE responses SET sends = :sends, sent_at = now() - make_interval(secs => :ago) WHERE id = :id"),
            {"sends": sends, "ago": seconds_ago, "id": response_id},
        )
    return response_id


async def undelivered(db: Database, head: str | None) -> list[str]:
    assert await messages.take_undelivered(db, {LIST: head}, LOST) == [], "none of them is released, or a count"
    return list(await messages.put_back(db, {LIST: head}, LOST))


async def test_with_an_empty_list_every_old_message_is_taken_once(db: Database) -> None:
    fresh, old = await sent(db, 0.0), await sent(db, 1.5 * LOST)
    assert await messages.lists_to_check(db, LOST) == [LIST]
    assert await undelivered(db, None) == [old]
    assert await undelivered(db, None) == []
    assert await status_of(db, fresh) is Status.QUEUED


async def test_a_lost_message_is_noticed_although_the_clock_of_postgres_went_back(db: Database) -> None:
    """It was sent at a time that is still to come."""
    sent_before_the_jump, sent_after = await sent(db, -3600.0), await sent(db, 0.0)
    assert await messages.lists_to_check(db, LOST) == [LIST]
    assert await undelivered(db, None) == [sent_before_the_jump]
    assert await undelivered(db, None) == []
    assert await status_of(db, sent_after) is Status.QUEUED


async def test_in_a_long_queue_only_messages_sent_before_its_head_are_taken(db: Database) -> None:
    gone = await sent(db, 20 * LOST)
    backlog = [await sent(db, 10 * LOST - number) for number in range(50)]
    assert await undelivered(db, backlog[0]) == [gone]
    assert await undelivered(db, backlog[0]) == []


async def test_an_unknown_head_proves_no_message_undelivered(db: Database) -> None:
    await sent(db, 20 * LOST)
    assert await undelivered(db, "resp_deleted") == []


async def test_the_wait_before_a_redelivery_doubles_each_time(db: Database) -> None:
    await sent(db, 3.5 * LOST, sends=3)
    assert await undelivered(db, None) == []
    patient = await sent(db, 4.5 * LOST, sends=3)
    assert await undelivered(db, None) == [patient]


async def test_a_response_that_was_never_sent_is_found_by_its_age(db: Database) -> None:
    response_id = await queued(db)
    assert await undelivered(db, None) == []
    async with db.begin() as connection:
        age = text("UPDATE responses SET sent_at = now() - make_interval(secs => :ago)")
        await connection.execute(age, {"ago": 1.5 * LOST})
    assert await undelivered(db, None) == [response_id]


async def test_a_count_whose_message_was_lost_is_sent_again_at_once(db: Database) -> None:
    response_id = await sent(db, 1.5 * LOST)
    async with db.begin() as connection:
        await connection.execute(text("UPDATE responses SET priority = 0"))
    (counts,) = await messages.lists_to_check(db, LOST)
    assert counts.list == list_of("model.scripted", Priority.COUNT)
    assert await messages.put_back(db, {counts: None}, LOST) == []
    (message,) = await messages.take_undelivered(db, {counts: None}, LOST)
    assert (message.response_id, message.list) == (response_id, counts.list)
    assert await messages.take_undelivered(db, {counts: None}, LOST) == []


async def test_a_released_response_is_sent_at_once_and_only_once(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    assert await taken(db) == [row.id]
    assert await taken(db) == []


MAX_CRASHES = 3


async def taken(db: Database) -> list[str]:
    return [message.response_id for message in await messages.take_released(db, MAX_CRASHES)]


async def crashed(db: Database, crashes: int) -> str:
    """A released response under which so many workers crashed."""
    response_id = await queued(db)
    for _ in range(crashes):
        await claim(db, response_id, "dead")
        await release_all(db, "dead")
    return response_id


@pytest.mark.parametrize("alive_workers", [0, 1, 2])
async def test_suspects_are_sent_as_many_as_there_are_workers(db: Database, alive_workers: int) -> None:
    suspects = [await crashed(db, MAX_CRASHES - 1) for _ in range(5)]
    for number in range(alive_workers):
        await alive(db, f"w{number}")
    others = [await crashed(db, 1) for _ in range(3)]
    at_once = max(alive_workers, 1)
    assert sorted(await taken(db)) == sorted([*suspects[:at_once], *others])
    assert await taken(db) == []
    if not alive_workers:
        await alive(db, "w0")
    await claim(db, suspects[0], "w0")
    assert await taken(db) == [], "it runs"
    await endings.cancel(db, suspects[0], None)
    assert await taken(db) == suspects[at_once : at_once + 1]
