"""The outbox: which endings make a delivery, who claims it, and the order of events."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
from sqlalchemy import text

from app.access.erasure import end_batches
from app.protocol.status import BatchStatus, Status
from app.store.batches import changes as batches
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.responses import queued as many
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from app.store.tenants import erasure
from app.store.webhooks import deliveries, endpoints, events
from app.store.webhooks.deliveries import ENDPOINT_AT_ONCE, Claimed, Noted
from app.store.webhooks.endpoints import EndpointRow
from tests.integration.store.common import answered, begun, last_of, scalar, sql
from tests.support.costs import meters
from tests.support.roles import as_role
from tests.support.rows import new_batch, queued
from tests.support.webhooks import ended, endpoint, make_due, rows

LEASE = 60.0
KEPT = 3600.0


async def claim(db: Database, most: int = 100, lease: float = LEASE) -> list[Claimed]:
    return await deliveries.claim(as_role(db, MAINTENANCE), most, lease)


async def fail(db: Database, claimed: Claimed, delay: float | None = 300.0, disable: str | None = None) -> None:
    status = "failed" if delay is None else "pending"
    await deliveries.note(as_role(db, MAINTENANCE), claimed, {"at": 1}, Noted(status, delay, disable))


async def deliver(db: Database, claimed: Claimed) -> None:
    await deliveries.note(as_role(db, MAINTENANCE), claimed, {"at": 1}, Noted("delivered", None, None))


async def disable(db: Database, disabled: bool) -> EndpointRow | None:
    changes = {"name": None, "url": None, "event_types": None, "disabled": disabled}
    return await endpoints.update(db, DEFAULT_PROJECT, "we_a", changes)


async def ended_batch(db: Database, status: BatchStatus, batch_id: str) -> str:
    await new_batch(db, batch_id)
    async with db.begin() as connection:
        if status is BatchStatus.CANCELLED:
            await batches.move(connection, batch_id, BatchStatus.CANCELLING)
        elif status is not BatchStatus.FAILED:
            await batches.validated(connection, batch_id, 1, "scripted")
            await batches.move(connection, batch_id, BatchStatus.FINALIZING)
        assert await batches.move(connection, batch_id, status)
    return batch_id


# -- which endings make one ----------------------------------------------------------------------------------------


async def test_each_way_to_end_makes_one_delivery_for_each_endpoint(db: Database) -> None:
    await endpoint(db, name="a")
    await endpoint(db, name="b")
    completed = (await answered(db, "x", background=True)).row.id
    cancelled = (await begun(db, background=True)).row.id
    await endings.cancel(db, cancelled, None)
    failed = (await begun(db, background=True)).row.id
    await endings.fail(db, failed, "server_error", "it broke")
    (at_once,) = await ended(db, 1)
    deleted = (await begun(db, background=True)).row.id
    await endings.delete(db, DEFAULT_PROJECT, deleted)
    found = await rows(db)
    assert Counter(row.endpoint for row in found) == {"we_a": 5, "we_b": 5}
    told = {row.object_id: row.type for row in found}
    assert told == {
        completed: "response.completed",
        failed: "response.failed",
        **dict.fromkeys((cancelled, at_once, deleted), "response.cancelled"),
    }
    for row in found:
        finished = await sql(db, "SELECT finished_at FROM responses WHERE id = :id", id=row.object_id)
        body = orjson.loads(row.body)
        at = body.pop("created_at")
        assert body == {"id": row.event_id, "object": "event", "type": row.type, "data": {"id": row.object_id}}
        assert at == (int(finished[0].finished_at.timestamp()) if finished else at)
    assert len({row.event_id for row in found}) == 5, "both endpoints get the same id"


async def test_an_incomplete_response_is_told_as_incomplete(db: Database) -> None:
    await endpoint(db)
    writer = await begun(db, "x", background=True)
    last = last_of(writer, status=Status.INCOMPLETE, incomplete_details={"reason": "max_output_tokens"})
    await logs.append(db, [last])
    assert [row.type for row in await rows(db)] == ["response.incomplete"]


async def test_the_foreground_lines_of_batches_and_other_projects_are_not_told(db: Database) -> None:
    await endpoint(db)
    await answered(db, "x", background=False)
    writer = await begun(db, "x", background=True)
    await sql(
        db, "UPDATE responses SET batch_id = 'b', batch_line = 1, custom_id = 'c' WHERE id = :id", id=writer.row.id
    )
    await logs.append(db, [writer.finish()])
    await ended(db, 1, project="another")
    assert await rows(db) == []
    assert await events.read(db, DEFAULT_PROJECT, "", 10, KEPT) == []


async def test_an_endpoint_gets_the_types_that_it_wants_while_it_is_enabled(db: Database) -> None:
    await endpoint(db, types=["response.completed"])
    await ended(db, 1)
    assert await rows(db) == []
    await disable(db, True)
    await answered(db, "x", background=True)
    assert await rows(db) == []
    await disable(db, False)
    await answered(db, "x", background=True)
    assert len(await rows(db)) == 1


FINAL_BATCHES = [each for each in BatchStatus if each.final]


async def test_the_end_of_a_batch_is_told(db: Database) -> None:
    await endpoint(db, types=[f"batch.{each.value}" for each in FINAL_BATCHES])
    ended = {await ended_batch(db, status, f"batch_{status.value}"): status for status in FINAL_BATCHES}
    told = {row.object_id: row for row in await rows(db)}
    seen = {event.object_id: event for event in await events.read(db, DEFAULT_PROJECT, "", 10, KEPT)}
    for batch_id, status in ended.items():
        row, event = told.pop(batch_id), seen.pop(batch_id)
        assert (event.id, event.type) == (row.event_id, row.type) == (row.event_id, f"batch.{status.value}")
        assert int(event.at.timestamp()) == orjson.loads(row.body)["created_at"]
    assert told == seen == {}


async def test_what_an_erasure_ends_is_not_told_and_its_deliveries_go(db: Database) -> None:
    await endpoint(db)
    await ended(db, 2)
    (unfinished,) = [await queued(db, background=True)]
    await new_batch(db, "batch_1")
    await sql(db, "UPDATE projects SET erase_at = clock_timestamp()")
    (due,) = await erasure.due(db, 0)
    await end_batches(db, due)
    await endings.cancel(db, unfinished, None)
    (after,) = await ended(db, 1)
    assert Counter(row.object_id in (unfinished, "batch_1") for row in await rows(db)) == {False: 3}
    assert await due.delete(as_role(db, MAINTENANCE), "deliveries", 100) == 2
    assert [row.object_id for row in await rows(db)] == [after]


# -- claims ----------------------------------------------------------------------------------------------------------


async def test_a_claimed_delivery_is_claimed_again_only_after_its_lease_and_with_the_same_id(db: Database) -> None:
    await endpoint(db)
    await ended(db, 1)
    (first,) = await claim(db)
    assert await claim(db) == []
    await sql(db, "UPDATE webhook_deliveries SET due_at = now() - interval '1 s'")  # the lease has ended
    (second,) = await claim(db)
    assert (first.event_id, first.body, first.tries, second.tries) == (second.event_id, second.body, 1, 2)
    await fail(db, first)  # by the process that was taken for dead
    assert (await rows(db))[0].attempts == []
    await deliver(db, second)
    (row,) = await rows(db)
    assert (row.status, row.attempts, row.due_at, row.sent_at) == ("delivered", [{"at": 1}], None, None)


async def test_copies_claim_different_deliveries_and_few_of_one_endpoint_at_once(db: Database) -> None:
    for name in "abc":
        await endpoint(db, name=name)
    await ended(db, 20)
    for _ in range(5):
        claimed = [each for found in await asyncio.gather(*[claim(db) for _ in range(6)]) for each in found]
        claimed += await claim(db)  # what was locked for a moment
        assert Counter(each.endpoint for each in claimed) == dict.fromkeys(("we_a", "we_b", "we_c"), ENDPOINT_AT_ONCE)
        assert len({(each.endpoint, each.event_id) for each in claimed}) == 3 * ENDPOINT_AT_ONCE
        for each in claimed:
            await deliver(db, each)
    assert {row.status for row in await rows(db)} == {"delivered"}


async def test_ten_thousand_deliveries_to_a_dead_endpoint_come_after_the_first_one_of_others(db: Database) -> None:
    await endpoint(db, name="dead")
    await ended(db, 1)
    filler = """
        INSERT INTO webhook_deliveries (endpoint, event_id, project, type, object_id, body, due_at)
        SELECT endpoint, event_id || n, project, type, object_id, body, now() - interval '1 hour'
        FROM webhook_deliveries CROSS JOIN generate_series(1, 10000) n
    """
    await sql(db, filler)
    await endpoint(db, name="alive")
    await ended(db, 2)
    found = await claim(db, most=ENDPOINT_AT_ONCE)
    assert Counter(each.endpoint for each in found) == {"we_dead": 2, "we_alive": 2}
    for each in found:
        await (fail(db, each) if each.endpoint == "we_dead" else deliver(db, each))
    assert Counter(each.endpoint for each in await claim(db)) == {"we_dead": 1}, "one at a time while it fails"


async def test_endpoints_without_room_keep_no_other_one_from_its_turn(db: Database) -> None:
    for name in ("full", "fuller"):
        await endpoint(db, name=name)
    await ended(db, 2 * ENDPOINT_AT_ONCE)
    assert len(await claim(db)) == 2 * ENDPOINT_AT_ONCE
    await endpoint(db, name="alone")
    await ended(db, 1)
    assert [each.endpoint for each in await claim(db, most=1)] == ["we_alone"]


async def test_an_endpoint_that_fails_takes_one_at_a_time_until_it_succeeds(db: Database) -> None:
    await endpoint(db)
    await ended(db, 10)
    first, *others = await claim(db)
    await fail(db, first)
    for each in others:
        await fail(db, each)
    (alone,) = await claim(db)
    assert alone.failing_seconds > 0
    await deliver(db, alone)
    assert len(await claim(db)) == ENDPOINT_AT_ONCE


async def test_an_endpoint_that_is_disabled_gets_nothing_and_goes_on_when_it_is_enabled(db: Database) -> None:
    await endpoint(db)
    await ended(db, 2)
    first, second = await claim(db)
    await fail(db, first, None, "gone")
    await fail(db, second)
    row = await endpoints.find(db, DEFAULT_PROJECT, "we_a")
    assert row is not None and row.disabled_at is not None and row.disabled_reason == "gone"
    await make_due(db)
    assert await claim(db) == []
    row = await disable(db, False)
    assert row is not None and (row.disabled_reason, row.failing_since) == (None, None)
    (again,) = await claim(db)
    assert again.event_id == second.event_id and again.tries == 2


async def test_a_rotation_after_the_claim_is_seen_by_the_next_try(db: Database) -> None:
    await endpoint(db)
    await ended(db, 1)
    (first,) = await claim(db)
    await endpoints.rotate(db, DEFAULT_PROJECT, "we_a", "sealed", "hint", 60.0)
    await fail(db, first, 0.0)
    (second,) = await claim(db)
    assert (second.secret, second.old_secret) == ("sealed", first.secret)
    await endpoints.rotate(db, DEFAULT_PROJECT, "we_a", "newer", "hint", 0.0)
    await fail(db, second, 0.0)
    (third,) = await claim(db)
    assert (third.secret, third.old_secret) == ("newer", None)


async def test_an_endpoint_goes_with_its_deliveries_while_attempts_are_noted(db: Database) -> None:
    await endpoint(db)
    await ended(db, 8)
    claimed = await claim(db)
    await asyncio.gather(*[deliver(db, each) for each in claimed], endpoints.delete(db, DEFAULT_PROJECT, "we_a"))
    assert await rows(db) == []


async def test_a_replay_in_mid_attempt_is_not_lost_by_the_note_of_that_attempt(db: Database) -> None:
    await endpoint(db)
    await ended(db, 1)
    (first,) = await claim(db)
    assert await deliveries.replay(db, DEFAULT_PROJECT, "we_a", first.event_id) is not None
    await deliver(db, first)
    (again,) = await claim(db)
    assert (again.event_id, again.tries) == (first.event_id, 1)
    assert await deliveries.replay(db, "another", "we_a", first.event_id) is None


async def test_old_deliveries_are_deleted_and_those_that_wait_are_kept(db: Database) -> None:
    await endpoint(db)
    await ended(db, 3)
    claimed = await claim(db)
    await deliver(db, claimed[0])
    await fail(db, claimed[1], None)
    now = await scalar(db, "SELECT clock_timestamp()")
    old = await scalar(db, "SELECT now() - interval '1 day'")
    assert await deliveries.delete_old(as_role(db, MAINTENANCE), old, old, 100) == 0
    assert await deliveries.delete_old(as_role(db, MAINTENANCE), now, old, 100) == 2
    assert [row.event_id for row in await rows(db)] == [claimed[2].event_id]
    assert await deliveries.delete_old(as_role(db, MAINTENANCE), now, now, 100) == 1


# -- the feed --------------------------------------------------------------------------------------------------------


async def feed(db: Database, after: str = "", limit: int = 100) -> list[str]:
    return [row.object_id for row in await events.read(db, DEFAULT_PROJECT, after, limit, KEPT)]


async def test_an_event_is_shown_when_nothing_can_come_before_it_any_more(db: Database) -> None:
    """One transaction began before another one, and commits after it."""
    slow = (await begun(db, background=True)).row.id
    async with db.begin() as connection:
        await connection.execute(text("SELECT pg_current_xact_id()"))
        (fast,) = await ended(db, 1)
        assert await feed(db) == [], "the open transaction may still end a response"
        await end_by_hand(connection, slow)
    assert await feed(db) == [slow, fast]


async def end_by_hand(connection: Any, response_id: str) -> None:
    """Ends a response that runs, in the caller's transaction."""
    statement = """
        UPDATE responses r SET status = 'cancelled', finished_at = now(), output = '[]', worker = NULL,
            event_id = 'evt_' || lpad(to_hex(CAST(CAST(pg_current_xact_id() AS text) AS bigint)), 12, '0')
                || right(r.id, 28)
        WHERE id = :id
    """
    await connection.execute(text(statement), {"id": response_id})


async def test_a_reader_in_pages_sees_each_event_once_while_many_commit_at_once(db: Database) -> None:
    ids = [await queued(db, background=True) for _ in range(120)]
    seen: list[str] = []

    async def end(response_id: str) -> None:
        async with db.begin() as connection:
            await connection.execute(text("SELECT pg_current_xact_id()"))
            await asyncio.sleep(0)
            await many.end(connection, [response_id], Status.CANCELLED)

    async def read() -> None:
        after = ""
        while len(seen) < len(ids):
            for row in await events.read(db, DEFAULT_PROJECT, after, 7, KEPT):
                seen.append(row.object_id)
                after = row.id

    await asyncio.gather(read(), *map(end, ids))
    assert sorted(seen) == sorted(ids)
    assert [row.object_id for row in await events.read(db, DEFAULT_PROJECT, "", 200, KEPT)] == seen


async def test_the_feed_has_responses_and_batches_in_one_order_and_forgets_them_with_their_logs(db: Database) -> None:
    first = (await answered(db, "x", background=True)).row.id
    second = await ended_batch(db, BatchStatus.FAILED, "batch_1")
    (third,) = await ended(db, 1)
    assert await feed(db) == [first, second, third]
    assert await feed(db, limit=2) == [first, second]
    await sql(db, "UPDATE responses SET log = 'deleted' WHERE id = :id", id=first)
    await sql(db, "UPDATE batches SET failed_at = now() - interval '2 hours'")
    assert await feed(db) == [third]
    assert await events.read(db, "another", "", 9, KEPT) == []


async def test_an_id_beyond_the_database_is_of_another_one(db: Database) -> None:
    await ended(db, 1)
    (row,) = await events.read(db, DEFAULT_PROJECT, "", 1, KEPT)
    assert await events.may_exist(db, row.id)
    assert not await events.may_exist(db, "evt_ffffffffffff" + row.id[-28:])


async def test_the_feed_is_read_from_its_indexes(db: Database) -> None:
    async with db.begin() as connection:
        for other in ("seqscan", "bitmapscan", "sort"):
            await connection.execute(text(f"SET LOCAL enable_{other} = off"))
        wanted = {"project": DEFAULT_PROJECT, "after": "", "limit": 10, "kept_seconds": KEPT}
        plan = (await connection.execute(text(f"EXPLAIN {events._READ.text}"), wanted)).scalars().all()
    assert "responses_events_idx" in "\n".join(plan) and "batches_events_idx" in "\n".join(plan)


async def test_an_end_costs_one_row_more_for_an_endpoint_and_no_statement(services: Any, db: Database) -> None:
    """The least of three ends counts: the first write of a page behind a checkpoint logs all of the page."""
    costs = []
    async with meters(services) as counting:
        own = Database(db._url, 1)
        for number in range(7):
            if number == 4:
                await endpoint(db, name="a")
            writer = await begun(db, "x", background=True)
            await own.ping()  # it is connected
            async with own.driver_connection():
                pass
            before = await counting.read()
            await logs.append(own, [writer.finish()])
            costs.append(await counting.read() - before)
        await own.close()
    assert {(cost.statements, cost.commits) for cost in costs[1:]} == {(1, 1)}, "the first one prepares"
    assert len(await rows(db)) == 3
    without, with_one = (min(cost.wal_bytes for cost in each) for each in (costs[1:4], costs[4:]))
    assert 0 < with_one - without < 2000, "the row, and its entries in three indexes"
