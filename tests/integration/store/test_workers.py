"""Living and dead workers, by lease and by advisory lock, on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from app.store.database import Database
from app.store.queue import workers
from app.store.responses import endings
from tests.support.rows import WORKER, alive, claim, claimed, queued


async def test_removing_dead_workers_does_not_wait_for_rows_that_another_copy_has_locked(db: Database) -> None:
    for name in ("w1", "w2"):
        await alive(db, name, lease_seconds=0.0)
        row = await queued(db)
        await claim(db, row, name)
    async with db.begin() as copy:
        await copy.execute(text("SELECT id FROM workers WHERE id = 'w1' FOR UPDATE"))
        async with asyncio.timeout(10):
            assert await workers.remove_dead_workers(db) == ["w2"]
    assert set(await workers.remove_dead_workers(db)) == {"w1", "w2"}


async def test_a_living_worker_keeps_its_responses(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
        for _ in range(3):
            assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []


async def test_a_worker_whose_lock_is_missing_twice_is_dead_whatever_its_lease_says(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
    assert await workers.remove_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == [WORKER]


async def test_a_cancelled_check_of_the_presence_does_not_lose_the_lock(db: Database) -> None:
    async with workers.presence(db, WORKER) as check:
        await alive(db)

        def cancel(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement == "SELECT 1":
                raise DBAPIError(statement, None, asyncpg.QueryCanceledError("cancelled"))

        event.listen(db.engine.sync_engine, "before_cursor_execute", cancel)
        await check()
        event.remove(db.engine.sync_engine, "before_cursor_execute", cancel)
        await check()
        for _ in range(3):
            assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []
        assert await workers.is_alive(db, WORKER)


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


async def test_after_a_failover_workers_have_time_to_come_back(db: Database) -> None:
    await alive(db)
    await claimed(db)
    watch = workers.ServerWatch()
    assert not watch.has_moved(
        datetime(2026, 11, 1, tzinfo=UTC), 3600.0
    )  # that server is gone; another one answers now
    for _ in range(3):
        assert await workers.remove_dead_workers(db, 0.0, 3600.0, watch) == []
    assert await workers.remove_dead_workers(db, 0.0, 0.0, watch) == [WORKER]


async def test_a_dead_worker_is_noticed_although_the_clock_of_postgres_went_back(db: Database) -> None:
    """Times of before are then still to come."""
    await alive(db)
    await claimed(db)
    assert await workers.remove_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    async with db.autocommit() as connection:
        await connection.execute(text("UPDATE workers SET absent_since = absent_since + interval '1 hour'"))
    assert await workers.remove_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == [WORKER]


async def test_a_living_worker_stays_although_the_clock_of_postgres_went_back(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
        async with db.autocommit() as connection:
            await connection.execute(text("UPDATE workers SET absent_since = now() + interval '1 hour'"))
        assert await workers.remove_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []


async def test_a_heartbeat_finds_responses_that_no_longer_belong_to_the_worker(db: Database) -> None:
    await alive(db)
    kept, cancelled = await claimed(db), await claimed(db)
    await endings.cancel(db, cancelled.id, None)
    running = {kept.id: 1, cancelled.id: 1, "resp_gone": 1}
    result = await workers.heartbeat(db, WORKER, 60.0, running)
    assert set(result.fenced) == {cancelled.id, "resp_gone"}
    assert result.orphaned == {}


async def test_a_heartbeat_finds_responses_of_the_worker_that_do_not_run_there(db: Database) -> None:
    await alive(db)
    running, forgotten, old = await claimed(db), await claimed(db), await claimed(db)
    result = await workers.heartbeat(db, WORKER, 60.0, {running.id: 1, old.id: 0})
    assert result.orphaned == {forgotten.id: 1, old.id: 1}
    assert result.fenced == {old.id: 0}


async def test_a_worker_that_was_removed_loses_its_lease_at_the_next_heartbeat(db: Database) -> None:
    await alive(db, lease_seconds=0.0)
    await workers.remove_dead_workers(db)
    with pytest.raises(workers.LeaseLost):
        await workers.heartbeat(db, WORKER, 60.0, {})


async def test_ready_models_are_those_of_living_workers(db: Database) -> None:
    await alive(db, "w1", model="one")
    await alive(db, "w2", lease_seconds=0.0, model="two")
    assert await workers.ready_models(db) == {"one"}
