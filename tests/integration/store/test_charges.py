"""Limits on requests and reads: charged first, exactly, by as many processes as there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.limits import ALL_MODELS, LimitKind, LimitState, Shortage
from app.store.by_project import LOCKED_AT_ONCE
from app.store.database import Database
from app.store.tenants import limits
from app.store.tenants.charges import Charge, Charger
from tests.integration.store.common import blocked, sql
from tests.support.limited import PROJECT, limited_project, remove, stop_the_clock, used
from tests.support.waiting import until

REQUESTS = LimitKind.REQUESTS_PER_MINUTE


@pytest.fixture
async def charger(db: Database) -> AsyncIterator[Charger]:
    made = Charger(db)
    yield made
    await made.close()


def request(project: str = PROJECT, model: str = ALL_MODELS, kind: LimitKind = REQUESTS) -> Charge:
    return Charge(project, model, kind)


async def test_no_process_lets_one_too_many_in(db: Database) -> None:
    await limited_project(db, requests_per_minute=100)
    await stop_the_clock(db)
    chargers = [Charger(db) for _ in range(4)]
    results = await asyncio.gather(*(each.take(request()) for _ in range(64) for each in chargers))
    assert sum(isinstance(result, LimitState) for result in results) == 100
    assert sum(isinstance(result, Shortage) for result in results) == 156
    assert await used(db) == {"requests_per_minute": 100}
    for each in chargers:
        await each.close()


async def test_each_request_is_told_what_is_left_after_it_and_a_minute_is_refilled_evenly(
    db: Database, charger: Charger
) -> None:
    await limited_project(db, requests_per_minute=3)
    await stop_the_clock(db)
    results = await asyncio.gather(*(charger.take(request()) for _ in range(4)))
    assert [result.remaining for result in results if isinstance(result, LimitState)] == [2, 1, 0]
    assert isinstance(results[3], Shortage) and results[3].wait_seconds == pytest.approx(20)
    await sql(db, "UPDATE limits SET as_of = now() - interval '40 s'")
    assert 0 < (await used(db))["requests_per_minute"] <= 1
    await sql(db, "UPDATE limits SET as_of = as_of - interval '90 s'")
    assert (await used(db))["requests_per_minute"] == 0


async def test_a_limit_that_was_removed_meanwhile_lets_everybody_in(db: Database, charger: Charger) -> None:
    await limited_project(db, requests_per_minute=1)
    assert await remove(db, REQUESTS)
    assert await asyncio.gather(*(charger.take(request()) for _ in range(3))) == [None] * 3


async def test_projects_whose_limits_are_locked_delay_no_other(db: Database, charger: Charger) -> None:
    names = [f"project{number}" for number in range(10)]
    for name in [*names, "quick"]:
        await limited_project(db, name, requests_per_minute=10)
    pool: Any = db.engine.pool
    async with db.begin() as connection:
        await connection.execute(text("SELECT 1 FROM limits WHERE project <> 'quick' FOR UPDATE"))
        waiting = [asyncio.create_task(charger.take(request(name))) for name in names]
        await until(lambda: pool.checkedout() == 1 + LOCKED_AT_ONCE)
        assert isinstance(await charger.take(request("quick")), LimitState)
        assert not any(task.done() for task in waiting)
    assert all([isinstance(await task, LimitState) for task in waiting])


async def test_a_new_value_forgets_no_charge(db: Database, charger: Charger) -> None:
    """The charge comes between the operator's look at the limits and the new value."""
    await limited_project(db, requests_per_minute=100)
    await stop_the_clock(db)
    async with db.begin() as connection:
        assert await limits.put(connection, limits.LimitRow(PROJECT, ALL_MODELS, REQUESTS, 50), 100)
        charging = asyncio.create_task(charger.take(request()))
        await blocked(db)
        assert not charging.done()
    after = await charging
    assert isinstance(after, LimitState) and (after.value, after.used) == (50, 1)
    assert await used(db) == {"requests_per_minute": 1}


async def test_no_settlement_of_a_response_touches_a_charge(db: Database, charger: Charger) -> None:
    await limited_project(db, requests_per_minute=100, unfinished_responses=5)
    await stop_the_clock(db)
    async with db.begin() as connection:
        held = await limits.hold(connection, [PROJECT])
        await charger.take(request())
        await held.write(connection, held.states)
    assert await used(db) == {"requests_per_minute": 1, "unfinished_responses": 0}
