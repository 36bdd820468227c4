"""Locks of many rows: whoever waits for several takes them in the order of their ids, so nobody waits in a circle.

Each test holds the row with the smaller id. One transaction waits for it, then an erasure, which finds the other row
first. If it locked that one, both would wait for each other once the smaller one is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from app.access.erasure import end_batches
from app.protocol.status import Status
from app.store.database import Database, StoreBusy, retry_until_available
from app.store.operations.actions import ActionKind
from app.store.operations.filters import ResponseFilter
from app.store.queue.workers import release_dead_workers
from app.store.responses import claims, endings, logs
from app.store.responses.logs import Entry
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from app.store.tenants.erasure import Erasure
from tests.integration.store.common import scalar, sql
from tests.support.bulk import started
from tests.support.logs import events_of, row_of
from tests.support.roles import as_role
from tests.support.rows import WORKER, Writer, alive, claim, claimed, new_batch, queued
from tests.support.waiting import until

ERASURE = Erasure(DEFAULT_PROJECT, datetime(2100, 1, 1, tzinfo=UTC), is_archived=True)
_WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


async def in_turn(db: Database, table: str, row: str, first: Awaitable[Any], second: Awaitable[Any]) -> list[Any]:
    """What both return: their transactions wait for a row, one behind the other, until it is free, or pass it by."""
    tasks = list[asyncio.Future[Any]]()
    async with db.begin() as holding:
        await holding.execute(text(f"SELECT FROM {table} WHERE id = :id FOR UPDATE"), {"id": row})
        for each in (first, second):
            tasks.append(asyncio.ensure_future(each))
            await until(lambda: wait_or_end(db, tasks), what=f"{len(tasks)} wait")
    return await asyncio.gather(*tasks)


async def wait_or_end(db: Database, tasks: Sequence[asyncio.Future[Any]]) -> bool:
    """Whether so many wait as there are tasks, or the last one has ended."""
    return tasks[-1].done() or await scalar(db, _WAITING) == len(tasks)


async def two_batches(db: Database) -> None:
    """The one with the larger id is older, and comes first in the table."""
    for name in ("batch_z", "batch_a"):
        await new_batch(db, name, lines=1)


async def ended_together(db: Database) -> list[Any]:
    """Two responses that ran, in the order of their ids; the second ended first."""
    rows = sorted([await claimed(db) for _ in range(2)], key=lambda row: row.id)
    for row in reversed(rows):
        await endings.cancel(db, row.id, None)
    return rows


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_an_erasure_and_a_cancel_of_whole_batches_do_not_wait_for_each_other(
    db: Database, is_deleted: bool
) -> None:
    await two_batches(db)
    own = as_role(db, MAINTENANCE)
    erases = ERASURE.delete(own, "batches", 10) if is_deleted else end_batches(own, ERASURE)
    action, _ = await in_turn(db, "batches", "batch_a", started(db, ActionKind.CANCEL, ResponseFilter()), erases)
    assert action.batches == 2
    left = {row.status for row in await sql(db, "SELECT status FROM batches")}
    assert left == (set() if is_deleted else {"cancelled"})


async def erased(db: Database) -> int:
    return await ERASURE.delete(as_role(db, MAINTENANCE), "responses", 10)


async def test_an_erasure_and_a_journal_that_writes_for_what_it_deletes_do_not_wait_for_each_other(
    db: Database,
) -> None:
    rows = await ended_together(db)
    journal = logs.append(db, [Writer(row).begin() for row in rows])
    assert await in_turn(db, "responses", rows[0].id, journal, erased(db)) == [set(), 2]


async def test_an_erasure_and_claims_of_what_it_deletes_do_not_wait_for_each_other(db: Database) -> None:
    rows = await ended_together(db)
    claiming = claims.claim_all(db, [(row.id, await alive(db, WORKER)) for row in rows])
    assert await in_turn(db, "responses", rows[0].id, claiming, erased(db)) == [[None, None], 2]


async def test_claims_and_the_removal_of_their_dead_worker_do_not_wait_for_each_other(db: Database) -> None:
    """The worker runs the first response already, whose message came twice. The second one waits."""
    first, second = sorted([await queued(db) for _ in range(2)])
    await claim(db, first, await alive(db, WORKER))
    removal = release_dead_workers(db, 0.0, comeback_seconds=0.0)
    await sql(db, "UPDATE workers SET absent_since = now() - interval '1 minute'")
    late = claims.claim_all(db, [(first, WORKER), (second, WORKER)])
    got, dead = await in_turn(db, "responses", first, late, removal)
    assert ([row and row.id for row in got], dead) == ([None, second], [])


async def test_journals_that_may_wait_for_each_other_write_again_and_lose_nothing(db: Database) -> None:
    """A worker that was taken for dead wakes up with a batch for what another one ends just then. The first worker's
    has one response more, which holds it up. If Postgres updates the last row first, one of the two statements fails,
    and its journal repeats it.
    """
    rows = sorted([await claimed(db) for _ in range(3)], key=lambda row: row.id)
    old = [Writer(row).begin() for row in rows]
    for row in rows:
        await claims.release(db, row.id, row.attempt, WORKER)
    taken = [await claim(db, row.id, "other") for row in (rows[2], rows[0])]
    writers = [Writer(row, "other") for row in taken if row is not None]
    await logs.append(db, [writer.begin() for writer in writers])
    new = [writer.finish() for writer in writers]
    other, failed = db.sibling(1), list[StoreBusy]()

    async def append(own: Database, entries: list[Entry]) -> set[str]:
        try:
            return await logs.append(own, entries)
        except StoreBusy as error:
            failed.append(error)
            raise

    journals = (retry_until_available(partial(append, *each)) for each in ((db, old), (other, new)))
    written = await in_turn(db, "responses", rows[1].id, *journals)
    await other.close()
    assert written == [set(), {rows[0].id, rows[2].id}]
    assert len(failed) <= 1
    for row in rows[::2]:
        assert (await row_of(db, row.id)).status is Status.COMPLETED
        numbers = [event["sequence_number"] for event in await events_of(db, row.id)]
        assert numbers == list(range(len(numbers)))
