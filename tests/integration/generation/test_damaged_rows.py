"""Rows that no version has written: each is failed at its next attempt, and costs no other response anything."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.store import retention
from app.store.database import Database
from app.store.responses import endings, logs, lookup
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, row_of, text_of, whole
from tests.support.rows import claimed, merge_all, queued
from tests.support.waiting import until
from tests.support.worker import worker
from workers.generation.outcome import Cancelled, Outcome, ResponseFailed

SLOW = {"tokens_per_second": 300.0}
UNKNOWN_REQUESTS = ['{"of a newer version": 1}', "[7]", "7", "null", r'{"input": [], "include": ["\ud800"]}']
"""The last one is JSON for Postgres and not for orjson."""


async def damage(db: Database, response_id: str, column: str, value: str) -> None:
    statement = f"UPDATE responses SET {column} = CAST(:value AS json) WHERE id = :id"
    await db.execute(text(statement), {"id": response_id, "value": value})


async def _has_begun(db: Database, response_id: str) -> bool:
    return len(await events_of(db, response_id)) >= 8


async def test_a_request_that_cannot_be_read_fails_its_own_response_and_no_other_of_its_batch(
    db: Database, pubsub: PubSub
) -> None:
    bad = [await queued(db) for _ in UNKNOWN_REQUESTS]
    good = [await queued(db, input="/count 5") for _ in range(3)]
    for response_id, request in zip(bad, UNKNOWN_REQUESTS, strict=True):
        await damage(db, response_id, "request", request)
    async with worker(db, pubsub) as w:
        outcomes = await asyncio.gather(*(w.run(each) for each in (*good, *bad)), return_exceptions=True)
    assert outcomes[:3] == [Outcome.COMPLETED] * 3
    assert [(await row_of(db, each)).attempt for each in good] == [1] * 3
    assert all(isinstance(each, ResponseFailed) for each in outcomes[3:])
    for response_id in bad:
        row = await row_of(db, response_id)
        assert (row.status, row.attempt) == (Status.FAILED, 1)
        assert row.error == {"code": "server_error", "message": "the stored request cannot be read"}
        assert (await events_of(db, response_id))[-1]["type"] == "response.failed"


async def test_a_request_that_becomes_unreadable_in_the_middle_keeps_its_output(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/count 100000")
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await until(lambda: _has_begun(db, response_id))
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        await damage(db, response_id, "request", "7")
        with pytest.raises(ResponseFailed, match="cannot be read"):
            await w.run(response_id)
    row = await row_of(db, response_id)
    assert (row.status, row.attempt) == (Status.FAILED, 2)
    assert text_of(row).startswith("1 2")


async def test_a_response_with_an_unreadable_request_can_be_cancelled_and_shown(db: Database) -> None:
    for request in UNKNOWN_REQUESTS:
        for response_id in (await queued(db), (await claimed(db)).id):
            await damage(db, response_id, "request", request)
            result = await endings.cancel(db, response_id, None)
            assert result is not None and result.row.status is Status.CANCELLED
            shown = (await row_of(db, response_id)).as_object()
            assert (shown["id"], shown["status"], shown["model"]) == (response_id, "cancelled", "scripted")


@pytest.mark.parametrize(("column", "value"), [("tool_results", "[7]"), ("tool_results", '{"0": 7}'), ("request", "7")])
async def test_what_cannot_be_read_of_a_response_fails_those_that_continue_it(
    db: Database, pubsub: PubSub, column: str, value: str
) -> None:
    async with worker(db, pubsub) as w:
        first = await queued(db, input="/say Uno")
        await w.run(first)
        await damage(db, first, column, value)
        second, other = await queued(db, previous_response_id=first), await queued(db, input="/say Due")
        outcomes = await asyncio.gather(w.run(second), w.run(other), return_exceptions=True)
    assert outcomes[1] is Outcome.COMPLETED
    assert isinstance(outcomes[0], ResponseFailed), outcomes
    assert (await row_of(db, second)).attempt == 1
    assert text_of(await row_of(db, first)) == "Uno", "the damaged one stays as it ended"


async def test_a_log_that_cannot_be_read_keeps_no_other_from_being_merged(db: Database, pubsub: PubSub) -> None:
    bad, good = await queued(db), await queued(db)
    async with worker(db, pubsub) as w:
        for response_id in (bad, good):
            await w.run(response_id)
    poison = "UPDATE chunks SET frames = 'poison' WHERE response_id = :id"
    await db.execute(text(poison), {"id": bad})
    before = (await logs.read(db, bad)).chunks
    assert await merge_all(db) == 2
    assert await retention.merge_finished(db, datetime.now(UTC)) == 0, "it is not tried again"
    row = await lookup.find(db, good)
    assert row is not None and row.log == "merged"
    await whole(db, good)
    assert (await logs.read(db, bad)).chunks == before
    assert await retention.delete_events(db, datetime.now(UTC)) == 2
