"""Single faults within Postgres, each with a known outcome, all on one fleet."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from random import Random

import httpx
import psutil
import pytest
import pytest_asyncio
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import StoreUnavailable
from tests.faults import audit, full_disk
from tests.faults.arena import Arena
from tests.faults.fleet import Fleet, running
from tests.faults.member import Role
from tests.faults.plan import Plan
from tests.faults.polling import with_pause
from tests.faults.questions import counting
from tests.faults.scenarios import SECONDS, background, ended, found, output_text
from tests.faults.store_faults import DAMAGES, cancel_heartbeats, damage, deadlock, statements_time_out
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

LONG = 150
"""A response that counts to this takes about five seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running(Plan(apis=1, workers=2, maintenances=1, flower=False)) as started:
        yield started


async def at_work(fleet: Fleet, count: int = 4, numbers: int = LONG) -> list[str]:
    """Responses that all have their first tokens."""
    ids = [await background(fleet, f"/count {numbers}") for _ in range(count)]

    async def all_stream() -> bool:
        owned = await fleet.owned()
        return {name for each in owned.values() for name in each} >= set(ids)

    await until(with_pause(all_stream), SECONDS, "all stream")
    return ids


async def ended_undisturbed(fleet: Fleet, ids: Sequence[str], crashes: int = 0) -> None:
    """Waits for the ends: all are whole, with so many crashes at most."""
    for row in await ended(fleet, ids):
        assert row.status is Status.COMPLETED, row.error
        assert row.crashes <= crashes
        assert output_text(row) == counting(LONG).answer
    steps = await audit.transitions(fleet.db, ids)
    assert [found for response_id in ids for found in audit.violations(steps[response_id])] == []


async def test_cancelled_heartbeats_cost_a_worker_nothing(fleet: Fleet) -> None:
    ids = await at_work(fleet)
    before = await fleet.ready_workers()
    assert await cancel_heartbeats(fleet, fleet.of(Role.WORKER)[0], times=3) == 3
    await ended_undisturbed(fleet, ids)
    assert [row.attempt for row in await found(fleet, ids)] == [1] * len(ids)
    assert await fleet.ready_workers() == before


async def test_statements_that_time_out_are_repeated(fleet: Fleet) -> None:
    """Workers may count as dead meanwhile: no statement proves that they live."""
    ids = await at_work(fleet)
    await statements_time_out(Arena(fleet, Random(5), {}))
    await ended_undisturbed(fleet, ids, crashes=fleet.plan.max_crashes)


async def test_a_deadlock_ends_one_statement_and_no_response(fleet: Fleet) -> None:
    before = await deadlocks(fleet)

    async def happened() -> list[str]:
        ids = await at_work(fleet)
        await deadlock(Arena(fleet, Random(5), {}))
        with suppress(AssertionError):  # Postgres counts within a second
            await until(with_pause(lambda: more_deadlocks(fleet, before)), 2)
            return ids
        return []

    await ended_undisturbed(fleet, await until(happened, SECONDS, "Postgres finds a deadlock"))


async def more_deadlocks(fleet: Fleet, before: int) -> bool:
    return await deadlocks(fleet) > before


async def deadlocks(fleet: Fleet) -> int:
    statement = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    async with fleet.db.autocommit() as connection:
        return int((await connection.execute(statement)).scalar_one())


async def test_a_full_disk_refuses_what_is_new_and_holds_up_what_runs(fleet: Fleet) -> None:
    ids = await at_work(fleet)
    async with full_disk.filled(fleet.db):
        answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json={"model": "scripted", "input": "Hi"})
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert "retry-after" in answer.headers
    await ended_undisturbed(fleet, ids)


@pytest.mark.root
async def test_a_file_system_that_is_really_full_refuses_and_holds_up_the_same(fleet: Fleet) -> None:
    if not full_disk.can_mount(fleet.folder):
        pytest.skip("this process may not mount file systems")
    async with full_disk.small_disk(fleet.services, fleet.folder) as disk:
        await fleet.wait_until_whole(SECONDS)
        ids = await at_work(fleet)
        with full_disk.filler(disk):
            await until(lambda: is_refused(fleet), SECONDS, "a table has to grow, and cannot")
        await ended_undisturbed(fleet, ids)
    await fleet.wait_until_whole(SECONDS)


async def is_refused(fleet: Fleet) -> bool:
    body = {"model": "scripted", "input": secrets.token_hex(10_000), "background": True}
    answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body)
    assert answer.status_code in (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE), answer.text
    return answer.status_code == httpx.codes.SERVICE_UNAVAILABLE


async def test_damaged_rows_fail_at_their_next_attempt_and_no_other_does(fleet: Fleet) -> None:
    good = await at_work(fleet)
    bad = await at_work(fleet, len(DAMAGES), 20 * LONG)  # none ends before it is damaged
    for response_id, name in zip(bad, DAMAGES, strict=True):
        await damage(fleet, [response_id], name)
    for worker in fleet.of(Role.WORKER):
        worker.signal(signal.SIGTERM)
    for row in await ended(fleet, bad):
        assert (row.status, row.attempt) == (Status.FAILED, 2), row
    await ended_undisturbed(fleet, good)
    await fleet.wait_until_whole(SECONDS)


async def test_a_claim_that_a_crash_of_postgres_undid_is_made_again_and_no_end_is_taken_back(fleet: Fleet) -> None:
    """Claims do not wait for the disk (docs/reliability.md). What flushes them is kept from doing so here."""
    await fleet.wait_until_whole(SECONDS)
    workers = [pid for member in fleet.of(Role.WORKER) if (pid := member.pid)]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    response_id = await background(fleet, f"/count {LONG}")
    with suppress(StoreUnavailable):  # its connection dies with Postgres
        async with fleet.db.begin() as connection:
            await connection.execute(text("LOCK TABLE chunks IN SHARE MODE"))
            await connection.execute(text("SELECT id FROM workers ORDER BY id FOR NO KEY UPDATE"))
            os.kill(walwriter(fleet), signal.SIGSTOP)
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: has_status(fleet, response_id, Status.IN_PROGRESS), SECONDS, "a poll sees the claim")
            crashed = time.time()
            await asyncio.to_thread(fleet.services.postgres.kill)
    await asyncio.to_thread(fleet.services.postgres.start)
    [row] = await ended(fleet, [response_id])
    assert row.started_at is not None and row.started_at.timestamp() > crashed, "the first claim was undone"
    await asyncio.to_thread(fleet.services.postgres.kill)
    await asyncio.to_thread(fleet.services.postgres.start)
    await until(lambda: has_status(fleet, response_id, Status.COMPLETED), SECONDS, "its end is still there")
    await ended_undisturbed(fleet, [response_id])


def walwriter(fleet: Fleet) -> int:
    titles = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in fleet.services.postgres.pids}
    return next(pid for pid, title in titles.items() if "walwriter" in title)


async def has_status(fleet: Fleet, response_id: str, status: Status) -> bool:
    with suppress(httpx.TransportError):
        answer = await fleet.http.get(f"{fleet.urls[0]}/v1/responses/{response_id}")
        return answer.status_code == httpx.codes.OK and answer.json()["status"] == status.value
    return False
