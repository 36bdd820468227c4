"""Endings, idempotency, retention and constraints on a real Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError

from app.protocol.events import frames
from app.protocol.status import TRANSITIONS, Status
from app.responses.read.reader import ResponseReader
from app.sizes import LARGE_BYTES
from app.store import database, retention
from app.store.database import Database, StoreUnavailable
from app.store.responses import claims, endings, logs, lookup
from app.store.responses.inserts import Inserter
from app.store.rows import Idempotency, LargeRow, ResponseRow, parsed_row
from config.settings import Settings
from tests.support import grammar
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, claim, claimed, new_response, queued
from tests.support.waiting import until


async def status_of(db: Database, response_id: str) -> Status:
    row = await lookup.find(db, response_id)
    assert row is not None
    return row.status


@pytest.mark.parametrize("before", ["queued", "in_progress", "in the middle"])
async def test_cancel_ends_the_log_with_a_whole_stream(db: Database, before: str) -> None:
    if before == "queued":
        response_id = await queued(db)
    else:
        row = await claimed(db)
        response_id = row.id
        if before == "in the middle":
            writer = Writer(row)
            await logs.append(db, [writer.begin()])
            await logs.append(db, [writer.say("half a sent", 1, 2)])
    cancellation = await endings.cancel(db, response_id, "default")
    assert cancellation is not None
    assert cancellation.chunk is not None
    reading = await logs.read(db, response_id)
    events = [event for chunk in reading.chunks for event in frames.decode(chunk.frames)]
    grammar.check(events)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"] | {"error": None} == cancellation.row.as_object()
    assert reading.ended


LARGE = "x" * 2 * LARGE_BYTES


async def finished(db: Database, **request: Any) -> ResponseRow:
    """A response that was answered."""
    row = await claimed(db, **request)
    writer = Writer(row)
    for entry in (writer.begin(), writer.say("answer"), writer.finish()):
        await logs.append(db, [entry])
    return row


async def test_a_large_request_comes_back_as_it_was_and_is_parsed_beside_the_event_loop(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (await finished(db, input=[message("small")])).id
    large = new_response(Idempotency("key", b"1"), input=[message(LARGE)])
    await Inserter(db).create(large)
    parsed_in = []

    def parse(row: Row[Any]) -> ResponseRow:
        parsed_in.append(threading.current_thread())
        return parsed_row(row)

    monkeypatch.setattr(lookup, "parsed_row", parse)
    found = await lookup.find(db, large.id)
    assert found is not None and found.request == large.request
    assert len(parsed_in) == 1
    assert threading.current_thread() not in parsed_in
    assert (await lookup.find(db, small)) is not None
    assert len(parsed_in) == 1


async def test_what_has_ended_is_read_together_as_far_as_it_is_small_together(db: Database) -> None:
    large, *halves = [
        (await finished(db, input=[message(each)])).id
        for each in (LARGE, *("x" * (LARGE_BYTES // 2) for _ in range(3)))
    ]
    waits = await queued(db)
    found = await lookup.find_ended(db, [waits, "resp_missing", large, *halves])
    assert found[:3] == [None, LargeRow("resp_missing"), LargeRow(large)]
    together = [each for each in found[3:] if isinstance(each, ResponseRow)]
    assert together == [await lookup.find(db, min(halves))]
    assert [each.id for each in found[3:] if each is not None] == halves


async def test_the_flags_of_a_large_row_are_read_without_it(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    include = ["reasoning.encrypted_content", "code_interpreter_call.outputs"]
    large = new_response(Idempotency("key", b"x" * 32), input=[message(LARGE)], include=include)
    await Inserter(db).create(large)
    monkeypatch.setattr(lookup, "parsed_row", None)
    all_taken = [db.large_reads.take("another") for _ in range(database.LARGE_READS)]
    found = [await lookup.get_flags(db, "default", large.id), await lookup.get_by_key(db, "default", "key")]
    assert found[0] is not None and found[1] is not None
    assert found[0].id == found[1].id == large.id
    assert (found[0].fingerprint, found[0].include) == (b"x" * 32, include)
    assert db.large_reads.held == len(all_taken)
    assert await lookup.get_flags(db, "theirs", large.id) is await lookup.get_by_key(db, "theirs", "key") is None


async def test_a_large_output_comes_back_as_it_was(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    for entry in (writer.begin(), writer.say(LARGE), writer.finish()):
        assert await logs.append(db, [entry]) == {row.id}
    found = await lookup.find(db, row.id)
    assert found is not None
    assert found.output is not None
    assert found.output[0]["content"][0]["text"] == LARGE
    assert found.request == row.request


async def test_large_rows_leave_connections_for_the_others(db: Database) -> None:
    large, small = await queued(db, input=[message(LARGE)]), await queued(db)
    with contextlib.ExitStack() as stack:
        for _ in range(database.LARGE_READS):
            stack.enter_context(db.large_reads.take("another"))
        readers = [asyncio.create_task(lookup.find(db, large)) for _ in range(100)]
        for _ in range(3):
            assert await lookup.find(db, small) is not None
        assert not any(reader.done() for reader in readers)
    assert all(await asyncio.gather(*readers))


async def test_the_large_row_of_a_project_waits_for_one_of_another_projects_many(db: Database) -> None:
    many, one = await queued(db, input=[message(LARGE)]), await queued(db, project="blue", input=[message(LARGE)])
    ended: list[str] = []

    async def hold(size: int) -> None: ...

    async def read(project: str, response_id: str) -> None:
        assert await lookup.show(db, project, response_id, lambda row: row, hold) is not None
        ended.append(project)

    def waiting(project: str) -> int:
        return len(db.large_reads._lines.get(project, ()))

    first, *others = [db.large_reads.take("another") for _ in range(database.LARGE_READS)]
    reading = [asyncio.create_task(read("default", many)) for _ in range(20)]
    await until(lambda: waiting("default") == 20)
    reading.append(asyncio.create_task(read("blue", one)))
    await until(lambda: waiting("blue") == 1)
    first.release()  # One place is free, so they end in the order of their turns.
    await asyncio.gather(*reading)
    assert ended[:2] == ["default", "blue"]
    assert db.large_reads.held == len(others)


async def test_a_large_output_so_far_waits_for_room_before_its_log_is_read(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    for _ in range(3):
        await logs.append(db, [writer.say(LARGE)])
    held: list[int] = []

    async def hold(size: int) -> None:
        monkeypatch.setattr(logs, "read", read)
        held.append(size)

    async def too_early(*_: object) -> None:
        raise AssertionError("the log was read before there was room")

    read = logs.read
    monkeypatch.setattr(logs, "read", too_early)
    reader = ResponseReader(db, cast(Any, None), Settings())
    shown = await reader.get(row.project, row.id, (), hold)
    assert not shown.final
    assert 3 * len(LARGE) < held[0] < 4 * len(LARGE)
    await reader.close()


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
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.say("done")])
    await logs.append(db, [writer.finish()])
    cancellation = await endings.cancel(db, row.id, "default")
    assert cancellation is not None
    assert cancellation.chunk is None
    assert cancellation.row.status is Status.COMPLETED


async def test_cancel_against_finish_has_one_winner_and_the_log_agrees_with_the_row(db: Database) -> None:
    for _ in range(20):
        row = await claimed(db)
        writer = Writer(row)
        await logs.append(db, [writer.begin()])
        await asyncio.gather(logs.append(db, [writer.finish()]), endings.cancel(db, row.id, None))
        reading = await logs.read(db, row.id)
        events = [event for chunk in reading.chunks for event in frames.decode(chunk.frames)]
        grammar.check(events)
        assert reading.status is not None
        assert events[-1]["response"]["status"] == reading.status.value


async def test_every_query_of_the_api_is_scoped_by_project(db: Database) -> None:
    response_id = await queued(db, project="mine")
    assert await lookup.get_flags(db, "theirs", response_id) is None
    assert await endings.cancel(db, response_id, "theirs") is None
    assert await endings.delete(db, "theirs", response_id) is None
    assert await status_of(db, response_id) is Status.QUEUED


async def test_a_delete_removes_row_and_events_and_fences_the_owner(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    deleted = await endings.delete(db, "default", row.id)
    assert deleted is not None
    assert deleted.chunk is not None
    assert await lookup.find(db, row.id) is None
    reading = await logs.read(db, row.id)
    assert (reading.chunks, reading.status, reading.ended) == ((), None, True)
    assert await logs.append(db, [writer.say("too late")]) == set()


async def test_a_repeated_idempotency_key_returns_the_first_response(db: Database) -> None:
    made = [new_response(Idempotency("key", b"1")) for _ in range(2)]
    created = await asyncio.gather(*(Inserter(db).create(new) for new in made))
    (repeated,) = [row for row in created if row is not None]
    first = next(new for new, row in zip(made, created, strict=True) if row is None)
    assert (repeated.id, repeated.fingerprint) == (first.id, b"1")
    assert await lookup.find(db, next(new.id for new in made if new is not first)) is None


async def test_the_queue_deadline_goes_by_the_clock_of_postgres(db: Database) -> None:
    wrong = datetime(2020, 1, 1, tzinfo=UTC)
    new = replace(new_response(), created_at=wrong, queue_seconds=600.0)
    await Inserter(db).create(new)
    async with db.autocommit() as connection:
        left = text("SELECT queue_deadline - now() FROM responses WHERE id = :id")
        (seconds,) = (await connection.execute(left, {"id": new.id})).one()
    assert timedelta(seconds=590) < seconds <= timedelta(seconds=600)


async def test_two_projects_can_use_the_same_idempotency_key(db: Database) -> None:
    for project in ("one", "two"):
        assert await Inserter(db).create(new_response(Idempotency("key", b"1"), project)) is None


async def test_a_queue_timeout_never_fails_a_response_that_was_claimed_in_time(db: Database) -> None:
    row = await claimed(db)
    assert await endings.fail(db, row.id, "queue_timeout", "late", only=Status.QUEUED) is None
    assert await status_of(db, row.id) is Status.IN_PROGRESS


async def test_retention_deletes_by_the_store_flag_and_keeps_unfinished_responses(db: Database) -> None:
    stored, unstored, unfinished = await queued(db), await queued(db, store=False), await queued(db)
    for response_id in (stored, unstored):
        await endings.cancel(db, response_id, None)
    async with db.begin() as connection:
        (now,) = (await connection.execute(text("SELECT now() + interval '1 s'"))).one()
        (past,) = (await connection.execute(text("SELECT now() - interval '1 day'"))).one()
    assert await retention.delete_expired(db, stored=past, unstored=now) == 1
    assert await lookup.find(db, unstored) is None
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
        logs.append(db, [Writer(row).begin()]),
    ]
    for attempt in attempts:
        await attempt
    assert await status_of(db, row.id) is Status.CANCELLED
    assert all(not transition.sources & {Status.CANCELLED} for transition in TRANSITIONS.values())


async def test_a_database_that_cannot_be_reached_is_unavailable() -> None:
    nowhere = Database("postgresql://u@127.0.0.1:9/x", 1)
    with pytest.raises(StoreUnavailable):
        await nowhere.ping()
    await nowhere.close()
