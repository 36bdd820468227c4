"""Transitions on a real Postgres: guarded, scoped, idempotent, and in one piece."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from app.protocol.events import frames
from app.protocol.status import TRANSITIONS, Status
from app.store import claims, endings, journal, responses, retention, workers
from app.store import redelivery as messages
from app.store.database import Database, StoreUnavailable
from app.store.inserts import Inserter
from app.store.rows import Idempotency
from tests.support import grammar
from tests.support.rows import WORKER, Writer, alive, claim, claimed, new_response, queued
from tests.support.waiting import until


async def status_of(db: Database, response_id: str) -> Status:
    row = await responses.find(db, response_id)
    assert row is not None
    return row.status


async def test_only_one_of_many_claims_wins(db: Database) -> None:
    response_id = await queued(db)
    claims = await asyncio.gather(*(claim(db, response_id, f"w{i}") for i in range(8)))
    won = [row for row in claims if row is not None]
    assert len(won) == 1
    assert (won[0].status, won[0].attempt) == (Status.IN_PROGRESS, 1)


async def test_a_claim_of_an_owned_final_or_unknown_response_gets_nothing(db: Database) -> None:
    row = await claimed(db)
    assert await claim(db, row.id, "other") is None
    await endings.cancel(db, row.id, "default")
    assert await claim(db, row.id, "other") is None
    assert await claim(db, "resp_unknown", "other") is None


async def test_claims_that_are_made_together_fare_as_if_made_one_by_one(db: Database) -> None:
    waiting, released, owned = await queued(db), await claimed(db), await claimed(db)
    await claims.release(db, released.id, released.attempt, WORKER)
    final = await queued(db)
    await endings.cancel(db, final, None)
    late = replace(new_response(), queue_seconds=-1.0)
    await Inserter(db).create(late)
    wanted = [owned.id, waiting, final, "resp_unknown", released.id, late.id]
    rows = await claims.claim_all(db, [(response_id, "w") for response_id in wanted])
    got = [None if row is None else (row.id, row.attempt, row.worker, row.status) for row in rows]
    mine = ("w", Status.IN_PROGRESS)
    assert got == [None, (waiting, 1, *mine), None, None, (released.id, 2, *mine), None]
    assert [row for row in rows if row] == [await responses.find(db, row.id) for row in rows if row]


async def test_of_duplicates_in_one_batch_the_first_gets_the_response(db: Database) -> None:
    one, other = await queued(db), await queued(db)
    rows = await claims.claim_all(db, [(one, "a"), (other, "a"), (one, "b"), (one, "a")])
    assert [row and (row.id, row.attempt, row.worker) for row in rows] == [(one, 1, "a"), (other, 1, "a"), None, None]


async def test_batches_of_claims_in_any_order_are_no_deadlock_and_each_response_is_claimed_once(db: Database) -> None:
    ids = [await queued(db) for _ in range(40)]
    databases = [Database(db.engine.url.render_as_string(hide_password=False), 1) for _ in range(4)]
    orders = [[(each, f"w{number}") for each in random.Random(number).sample(ids, 40)] for number in range(4)]
    batches = await asyncio.gather(*map(claims.claim_all, databases, orders))
    won = [row.id for batch in batches for row in batch if row is not None]
    assert sorted(won) == sorted(ids)
    for each in databases:
        await each.close()


async def test_a_claim_that_had_to_wait_judges_by_what_the_row_became_meanwhile(db: Database) -> None:
    """Not by what it was when the claim began: released and cancelled while others held its lock."""
    released, cancelled = await claimed(db), await queued(db)
    async with db.begin() as other:
        ending = "status = 'cancelled', finished_at = now(), output = '[]'"
        await other.execute(text(f"UPDATE responses SET {ending} WHERE id = :id"), {"id": cancelled})
        await other.execute(text("UPDATE responses SET worker = NULL WHERE id = :id"), {"id": released.id})
        wanted = [(cancelled, "w"), (released.id, "w")]
        claiming = asyncio.create_task(claims.claim_all(db, wanted))
        await until(lambda: waits_for_a_lock(db), what="the claims wait")
    none, row = await claiming
    assert none is None
    assert row is not None
    assert (row.worker, row.attempt) == ("w", 2)


async def test_a_claim_looks_at_no_response_but_its_own(db: Database) -> None:
    """Statistics of a quiet time say that hardly anything waits or runs: no index of that must tempt Postgres."""
    for row in [await claimed(db) for _ in range(300)]:
        await endings.cancel(db, row.id, None)
    async with db.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses"))
    wanted = [await queued(db) for _ in range(8)]
    async with db.dedicated("claim") as connection:
        plan = await connection.fetch(f"EXPLAIN {claims._CLAIM}", wanted, ["w"] * 8)
    lines = "\n".join(row[0] for row in plan)
    assert "responses_pkey" in lines
    assert not re.search(r"responses_\w+_idx|Seq Scan", lines)


async def test_a_released_response_is_claimed_under_a_new_attempt(db: Database) -> None:
    row = await claimed(db)
    assert await claims.release(db, row.id, row.attempt, WORKER)
    again = await claim(db, row.id, "other")
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 0)


async def test_taking_responses_from_a_worker_that_is_alive_and_writing_is_no_deadlock(db: Database) -> None:
    """Its journal has locked the first of a batch; the rows lie in another order than their ids have."""
    ids = sorted([(await queued(db)) for _ in range(2)])
    for response_id in reversed(ids):
        await claim(db, response_id, WORKER)
    lock = text("SELECT id FROM responses WHERE id = :id FOR SHARE")
    async with db.begin() as batch:
        await batch.execute(lock, {"id": ids[0]})
        taking = asyncio.create_task(claims.release_all(db, WORKER, 5))
        await until(lambda: waits_for_a_lock(db), what="the taker waits")
        await batch.execute(lock, {"id": ids[1]})
    assert await taking == []
    assert [(await claim(db, response_id, "other")) is not None for response_id in ids] == [True, True]


async def waits_for_a_lock(db: Database) -> bool:
    async with db.autocommit() as connection:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool((await connection.execute(waiting)).scalar_one())


async def test_a_look_for_the_dead_does_not_wait_for_what_another_copy_has_in_hand(db: Database) -> None:
    for name in ("w1", "w2"):
        await alive(db, name, lease_seconds=0.0)
        row = await queued(db)
        await claim(db, row, name)
    async with db.begin() as copy:
        await copy.execute(text("SELECT id FROM workers WHERE id = 'w1' FOR UPDATE"))
        async with asyncio.timeout(10):
            assert await workers.remove_dead_workers(db) == ["w2"]
    assert set(await workers.remove_dead_workers(db)) == {"w1", "w2"}


async def test_release_by_an_earlier_attempt_is_refused(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    await claim(db, row.id, "other")
    assert await claims.release(db, row.id, row.attempt, WORKER) is None


@pytest.mark.parametrize("before", ["queued", "in_progress", "in the middle"])
async def test_cancel_ends_the_log_with_a_whole_stream(db: Database, before: str) -> None:
    if before == "queued":
        response_id = await queued(db)
    else:
        row = await claimed(db)
        response_id = row.id
        if before == "in the middle":
            writer = Writer(row)
            await journal.append(db, [writer.begin()])
            await journal.append(db, [writer.say("half a sent", 1, 2)])
    cancellation = await endings.cancel(db, response_id, "default")
    assert cancellation is not None
    assert cancellation.chunk is not None
    reading = await journal.read(db, response_id)
    events = [event for chunk in reading.chunks for event in frames.decode(chunk.frames)]
    grammar.check(events)
    assert events[-1]["type"] == "response.cancelled"
    assert events[-1]["response"] == cancellation.row.as_object()
    assert reading.ended


async def test_cancel_twice_is_one_cancel(db: Database) -> None:
    response_id = await queued(db)
    first, second = await asyncio.gather(*(endings.cancel(db, response_id, None) for _ in range(2)))
    assert first is not None
    assert second is not None
    assert [first.chunk is None, second.chunk is None].count(False) == 1
    assert first.row.as_object() == second.row.as_object()


async def test_cancel_of_a_finished_response_returns_it_unchanged(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await journal.append(db, [writer.begin()])
    await journal.append(db, [writer.say("done")])
    await journal.append(db, [writer.finish()])
    cancellation = await endings.cancel(db, row.id, "default")
    assert cancellation is not None
    assert cancellation.chunk is None
    assert cancellation.row.status is Status.COMPLETED


async def test_cancel_against_finish_has_one_winner_and_the_log_agrees_with_the_row(db: Database) -> None:
    for _ in range(20):
        row = await claimed(db)
        writer = Writer(row)
        await journal.append(db, [writer.begin()])
        await asyncio.gather(journal.append(db, [writer.finish()]), endings.cancel(db, row.id, None))
        reading = await journal.read(db, row.id)
        events = [event for chunk in reading.chunks for event in frames.decode(chunk.frames)]
        grammar.check(events)
        assert reading.status is not None
        assert events[-1]["type"] == f"response.{reading.status.value}"


async def test_every_query_of_the_api_is_scoped_by_project(db: Database) -> None:
    response_id = await queued(db, project="mine")
    assert await responses.get(db, "theirs", response_id) is None
    assert await endings.cancel(db, response_id, "theirs") is None
    assert await endings.delete(db, "theirs", response_id) is None
    assert await status_of(db, response_id) is Status.QUEUED


async def test_delete_takes_row_and_events_and_stops_the_owner(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await journal.append(db, [writer.begin()])
    deleted = await endings.delete(db, "default", row.id)
    assert deleted is not None
    assert deleted.chunk is not None
    assert await responses.get(db, "default", row.id) is None
    reading = await journal.read(db, row.id)
    assert (reading.chunks, reading.status, reading.ended) == ((), None, True)
    assert await journal.append(db, [writer.say("too late")]) == set()


async def test_what_a_dead_worker_had_is_disowned_and_claimed_again(db: Database) -> None:
    await alive(db, lease_seconds=0.0)
    row = await claimed(db)
    assert await workers.remove_dead_workers(db) == [WORKER]
    assert await claims.release_all(db, WORKER, max_crashes=5) == []
    again = await claim(db, row.id, "other")
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 1)


async def test_a_living_workers_responses_stay_its_own(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
        for _ in range(3):
            assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []


async def test_a_worker_whose_lock_is_gone_is_dead_at_the_second_look_whatever_its_lease_says(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
    assert await workers.remove_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == [WORKER]


async def test_a_worker_that_comes_back_between_two_looks_lives(db: Database) -> None:
    await alive(db)
    await claimed(db)
    assert await workers.remove_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    async with workers.presence(db, WORKER):
        assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []
    assert await workers.remove_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []


async def test_after_a_restart_of_postgres_workers_have_time_to_come_back(db: Database) -> None:
    await alive(db)
    await claimed(db)
    for _ in range(3):
        assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=1e9) == []


async def test_an_idempotency_key_makes_a_repeated_request_the_first_ones_response(db: Database) -> None:
    made = [new_response(Idempotency("key", b"1")) for _ in range(2)]
    created = await asyncio.gather(*(Inserter(db).create(new) for new in made))
    (repeated,) = [row for row in created if row is not None]
    first = next(new for new, row in zip(made, created, strict=True) if row is None)
    assert (repeated.id, repeated.fingerprint) == (first.id, b"1")
    assert await responses.find(db, next(new.id for new in made if new is not first)) is None


async def test_idempotency_keys_of_projects_do_not_meet(db: Database) -> None:
    for project in ("one", "two"):
        assert await Inserter(db).create(new_response(Idempotency("key", b"1"), project)) is None


async def test_what_waited_too_long_is_never_claimed_and_found_overdue(db: Database) -> None:
    new = replace(new_response(), queue_seconds=0.001)
    await Inserter(db).create(new)
    assert await claim(db, new.id, WORKER) is None
    assert list(await endings.find_overdue(db)) == [(new.id, Status.QUEUED)]


async def test_a_run_deadline_begins_with_the_first_claim_and_is_not_prolonged_by_a_takeover(db: Database) -> None:
    new = replace(new_response(), run_seconds=0.001)
    await Inserter(db).create(new)
    row = await claim(db, new.id, WORKER)
    assert row is not None
    await claims.release(db, row.id, row.attempt, WORKER)
    await claim(db, new.id, "other")
    assert list(await endings.find_overdue(db)) == [(new.id, Status.IN_PROGRESS)]


async def test_a_queue_timeout_never_fails_what_was_claimed_in_time(db: Database) -> None:
    row = await claimed(db)
    assert await endings.fail(db, row.id, "queue_timeout", "late", only=Status.QUEUED) is None
    assert await status_of(db, row.id) is Status.IN_PROGRESS


async def test_the_last_crash_is_named_for_failing(db: Database) -> None:
    row = await claimed(db)
    assert await claims.release_all(db, WORKER, max_crashes=1) == [row.id]
    failed = await endings.fail(db, row.id, "server_error", "crashed too often")
    assert failed is not None
    assert failed.row.error == {"code": "server_error", "message": "crashed too often"}


LIST = messages.BrokerList("model.scripted", 6)


async def sent(db: Database, seconds_ago: float, sends: int = 1) -> str:
    response_id = await queued(db)
    async with db.begin() as connection:
        await connection.execute(
            text("UPDATE responses SET sends = :sends, sent_at = now() - make_interval(secs => :ago) WHERE id = :id"),
            {"sends": sends, "ago": seconds_ago, "id": response_id},
        )
    return response_id


async def lost(db: Database, head: str | None) -> list[str]:
    return [message.response_id for message in await messages.take_undelivered(db, {LIST: head}, 2.0)]


async def test_with_an_empty_list_every_message_of_some_age_is_lost_once(db: Database) -> None:
    fresh, old = await sent(db, 0.0), await sent(db, 3.0)
    assert await messages.lists_to_check(db, 2.0) == [LIST]
    assert await lost(db, None) == [old]
    assert await lost(db, None) == []
    assert await status_of(db, fresh) is Status.QUEUED


async def test_in_a_long_honest_queue_nothing_is_lost_but_what_is_before_its_head(db: Database) -> None:
    gone = await sent(db, 3600.0)
    backlog = [await sent(db, 1800.0 - number) for number in range(50)]
    assert await lost(db, backlog[0]) == [gone]
    assert await lost(db, backlog[0]) == []


async def test_a_head_that_is_unknown_says_nothing(db: Database) -> None:
    await sent(db, 3600.0)
    assert await lost(db, "resp_deleted") == []


async def test_a_message_sent_in_vain_gets_longer_each_time(db: Database) -> None:
    await sent(db, 7.0, sends=3)
    assert await lost(db, None) == []
    patient = await sent(db, 9.0, sends=3)
    assert await lost(db, None) == [patient]


async def test_a_response_that_was_never_sent_is_found_by_its_age(db: Database) -> None:
    response_id = await queued(db)
    assert await lost(db, None) == []
    async with db.begin() as connection:
        await connection.execute(text("UPDATE responses SET sent_at = now() - interval '3 s'"))
    assert await lost(db, None) == [response_id]


async def test_a_released_response_is_sent_at_once_and_once(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    assert [message.response_id for message in await messages.take_released(db)] == [row.id]
    assert await messages.take_released(db) == []


async def test_the_heartbeat_tells_what_is_not_ours_any_more(db: Database) -> None:
    await alive(db)
    kept, cancelled = await claimed(db), await claimed(db)
    await endings.cancel(db, cancelled.id, None)
    running = {kept.id: 1, cancelled.id: 1, "resp_gone": 1}
    result = await workers.heartbeat(db, WORKER, 60.0, running)
    assert set(result.fenced) == {cancelled.id, "resp_gone"}
    assert result.orphaned == {}


async def test_the_heartbeat_tells_what_is_ours_and_does_not_run(db: Database) -> None:
    await alive(db)
    running, forgotten, old = await claimed(db), await claimed(db), await claimed(db)
    result = await workers.heartbeat(db, WORKER, 60.0, {running.id: 1, old.id: 0})
    assert result.orphaned == {forgotten.id: 1, old.id: 1}
    assert result.fenced == {old.id: 0}


async def test_a_worker_taken_for_dead_learns_it_from_its_heartbeat(db: Database) -> None:
    await alive(db, lease_seconds=0.0)
    await workers.remove_dead_workers(db)
    with pytest.raises(workers.LeaseLost):
        await workers.heartbeat(db, WORKER, 60.0, {})


async def test_ready_models_are_those_of_living_workers(db: Database) -> None:
    await alive(db, "w1", model="one")
    await alive(db, "w2", lease_seconds=0.0, model="two")
    assert await workers.ready_models(db) == {"one"}


async def test_retention_deletes_by_store_flag_and_keeps_the_unfinished(db: Database) -> None:
    stored, unstored, unfinished = await queued(db), await queued(db, store=False), await queued(db)
    for response_id in (stored, unstored):
        await endings.cancel(db, response_id, None)
    async with db.begin() as connection:
        (now,) = (await connection.execute(text("SELECT now() + interval '1 s'"))).one()
        (past,) = (await connection.execute(text("SELECT now() - interval '1 day'"))).one()
    assert await retention.delete_expired(db, stored=past, unstored=now) == 1
    assert await responses.find(db, unstored) is None
    assert await retention.delete_expired(db, stored=now, unstored=now) == 1
    assert await status_of(db, unfinished) is Status.QUEUED


FORBIDDEN = {
    "a final row without its time": "UPDATE responses SET status = 'cancelled'",
    "a time without a final row": "UPDATE responses SET finished_at = now()",
    "an error without a failure": "UPDATE responses SET error = '{}'",
    "an owner while queued": "UPDATE responses SET worker = 'w'",
    "a status that nobody knows": "UPDATE responses SET status = 'paused'",
    "in progress without an attempt": "UPDATE responses SET status = 'in_progress', started_at = now()",
}


@pytest.mark.parametrize("statement", FORBIDDEN.values(), ids=FORBIDDEN)
async def test_the_schema_itself_forbids(db: Database, statement: str) -> None:
    await queued(db)
    with pytest.raises(IntegrityError):
        async with db.begin() as connection:
            await connection.execute(text(statement))


async def test_nothing_ever_leaves_a_final_status(db: Database) -> None:
    row = await claimed(db)
    await endings.cancel(db, row.id, None)
    attempts = [
        claim(db, row.id, "w"),
        claims.release(db, row.id, row.attempt, WORKER),
        endings.cancel(db, row.id, None),
        endings.fail(db, row.id, "server_error", "no"),
        journal.append(db, [Writer(row).begin()]),
    ]
    for attempt in attempts:
        await attempt
    assert await status_of(db, row.id) is Status.CANCELLED
    assert all(not transition.sources & {Status.CANCELLED} for transition in TRANSITIONS.values())


async def test_a_database_that_is_not_there_is_said_to_be_unavailable() -> None:
    nowhere = Database("postgresql+asyncpg://u@127.0.0.1:9/x", 1)
    with pytest.raises(StoreUnavailable):
        await nowhere.ping()
    await nowhere.close()


async def test_a_claim_waits_for_no_disk_and_leaves_the_connection_as_it_was(db: Database) -> None:
    response_id = await queued(db)
    assert await claim(db, response_id, "w") is not None
    async with db.dedicated("claim") as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        async with connection.transaction():
            await connection.fetch(claims._CLAIM, [await queued(db)], ["w"])
            assert await connection.fetchval("SHOW synchronous_commit") == "off"
