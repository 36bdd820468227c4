"""Queued responses that end together: their logs end as if each had ended by itself, though nobody wrote their ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from app.protocol.status import Status
from app.store import retention
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.responses import queued as together
from app.store.rows import Notice
from tests.integration.store.common import held, sql
from tests.support.bulk import many_queued
from tests.support.logs import events_of, row_of, whole
from tests.support.rows import WORKER, claim
from tests.support.stored import stored

LATE = "queue_timeout", "too late"


async def cancelled(db: Database, ids: Sequence[str]) -> list[Notice]:
    async with db.begin() as connection:
        return await together.end(connection, ids, Status.CANCELLED)


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.FAILED])
async def test_rows_and_events_are_those_of_an_end_by_itself(db: Database, status: Status) -> None:
    first, second, alone = await many_queued(db, 3, input="Why?", metadata={"run": "a"})
    if status is Status.CANCELLED:
        ended = await cancelled(db, [first, second])
        await endings.cancel(db, alone, None)
    else:
        ended = await together.fail(db, [first, second], *LATE)
        await endings.fail(db, alone, *LATE)
    assert {(notice.response_id, notice.status) for notice in ended} == {(first, status), (second, status)}
    own: dict[str, Any] = {"id": "", "created_at": 0}
    of_many, of_one = [(await whole(db, each, status)).as_object() | own for each in (first, alone)]
    assert of_many == of_one
    for many, one in zip(await events_of(db, first), await events_of(db, alone), strict=True):
        assert many | {"response": own} == one | {"response": own}
        assert many.get("response", {}) | own == one.get("response", {}) | own
    await stored(db, "default")


async def test_what_does_not_wait_any_more_or_is_held_by_others_is_left(db: Database) -> None:
    waits, locked, runs, ended = await many_queued(db, 4)
    await claim(db, runs, WORKER)
    await endings.cancel(db, ended, None)
    async with held(db, locked):
        told = await cancelled(db, [waits, locked, runs, ended, "resp_unknown"])
    assert [notice.response_id for notice in told] == [waits]
    assert (await row_of(db, locked)).status is Status.QUEUED
    assert (await row_of(db, runs)).status is Status.IN_PROGRESS


async def test_a_reader_gets_the_end_alone_if_it_has_the_opening(db: Database) -> None:
    (response_id,) = await many_queued(db, 1)
    await together.fail(db, [response_id], *LATE)
    for after, numbers in ((-1, (0, 2)), (0, (1, 2)), (1, (2,)), (2, (3,)), (3, ())):
        log = await logs.read_page(db, response_id, after)
        assert log.ended and tuple(chunk.first for chunk in log.chunks) == numbers


async def test_an_opening_that_cannot_be_read_takes_no_end_away(db: Database) -> None:
    (response_id,) = await many_queued(db, 1)
    await sql(db, "UPDATE chunks SET frames = 'poison'")
    await cancelled(db, [response_id])
    (end,) = (await logs.read(db, response_id, 1)).chunks
    assert end.final and b'"status":"cancelled"' in end.frames and response_id.encode() in end.frames


async def test_a_long_log_is_merged_with_its_end_and_deleted_with_it(db: Database) -> None:
    (response_id,) = await many_queued(db, 1, instructions=str(list(range(9000))))
    await cancelled(db, [response_id])
    before = (await row_of(db, response_id)).log, await events_of(db, response_id)
    now = await retention.now(db) + timedelta(seconds=1)
    assert await retention.merge_finished(db, now) == 1
    assert before == ("live", await events_of(db, response_id))
    rows = await sql(db, "SELECT first, last, final FROM chunks")
    assert list(map(tuple, rows)) == [(0, 2, True)]
    await stored(db, "default")
    assert await retention.delete_events(db, now) == 1
    assert (await logs.read(db, response_id)).chunks == ()
    await stored(db, "default")
