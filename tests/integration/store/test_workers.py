"""Living and dead workers, by lease and by advisory lock, on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from app.store.database import Database, StoreUnavailable
from app.store.queue import workers
from app.store.responses import endings
from tests.integration.store.common import scalar, sql
from tests.support.logs import row_of
from tests.support.rows import SLOTS, WORKER, alive, claim, claimed, queued
from tests.support.waiting import PATIENCE_SECONDS, until


async def test_removing_dead_workers_does_not_wait_for_rows_that_another_copy_has_locked(db: Database) -> None:
    for name in ("w1", "w2"):
        await alive(db, name, lease_seconds=0.0)
        row = await queued(db)
        await claim(db, row, name)
    async with db.begin() as copy:
        await copy.execute(text("SELECT id FROM workers WHERE id = 'w1' FOR UPDATE"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await workers.release_dead_workers(db, lease_seconds=0.0) == ["w2"]
    assert await workers.release_dead_workers(db, lease_seconds=0.0) == ["w1"]


async def test_a_living_worker_keeps_its_responses(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
        for _ in range(3):
            assert await workers.release_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []
        await sql(db, "UPDATE workers SET absent_since = now() + interval '1 hour'")  # the clock went back
        assert await workers.release_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []


async def test_a_worker_whose_lock_is_missing_twice_is_dead_whatever_its_lease_says(db: Database) -> None:
    async with workers.presence(db, WORKER):
        await alive(db)
        await claimed(db)
    assert await workers.release_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    assert await workers.release_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == [WORKER]


HOLDER = """
    pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory' AND state = 'idle in transaction'
"""


async def test_the_transaction_that_holds_the_lock_delays_no_vacuum(db: Database) -> None:
    async with workers.presence(db, WORKER) as check:
        await check()
        assert await sql(db, f"SELECT backend_xid, backend_xmin FROM {HOLDER}") == [(None, None)]


async def test_no_time_out_of_the_role_ends_the_transaction_that_holds_the_lock(migrated: str, db: Database) -> None:
    """The time-out is long, because it also ends what SQLAlchemy asks a new connection when the machine is slow."""
    separator = "&" if "?" in migrated else "?"
    impatient = Database(f"{migrated}{separator}options=-c%20idle_in_transaction_session_timeout%3D2s", 2)
    try:
        async with workers.presence(impatient, WORKER) as check:

            async def idled_longer_than_the_time_out() -> bool:
                return bool(await scalar(db, f"SELECT now() - state_change > interval '2.5 s' FROM {HOLDER}"))

            await until(idled_longer_than_the_time_out)
            await check()
    finally:
        await impatient.close()


async def test_a_worker_that_comes_back_between_two_looks_lives(db: Database) -> None:
    await alive(db)
    await claimed(db)
    assert await workers.release_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    async with workers.presence(db, WORKER):
        assert await workers.release_dead_workers(db, absence_seconds=0.0, comeback_seconds=0.0) == []
    assert await workers.release_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []


async def test_after_a_restart_or_a_failover_of_postgres_workers_have_time_to_come_back(db: Database) -> None:
    await alive(db)
    await claimed(db)
    for _ in range(3):
        assert await workers.release_dead_workers(db, absence_seconds=0.0, comeback_seconds=1e9) == []
    watch = workers.ServerWatch()
    gone = datetime(2026, 11, 1, tzinfo=UTC)  # when that server started; another one answers now
    assert not watch.has_moved(gone, 3600.0)
    for _ in range(3):
        assert await workers.release_dead_workers(db, 0.0, 3600.0, watch) == []
    assert await workers.release_dead_workers(db, 0.0, 0.0, watch) == [WORKER]


async def test_a_dead_worker_is_noticed_although_the_clock_of_postgres_went_back(db: Database) -> None:
    """Times of before are then still to come."""
    await alive(db)
    await claimed(db)
    assert await workers.release_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == []
    await sql(db, "UPDATE workers SET absent_since = absent_since + interval '1 hour'")
    assert await workers.release_dead_workers(db, absence_seconds=3600.0, comeback_seconds=0.0) == [WORKER]


async def test_a_lease_that_ran_out_while_nobody_could_renew_it_is_not_the_end(db: Database) -> None:
    """Postgres was frozen: at the first look no worker has a lease."""
    async with workers.presence(db, WORKER):
        await alive(db, lease_seconds=0.0)
        row = await claimed(db)
        assert await workers.release_dead_workers(db, lease_seconds=60.0) == []
        assert (await workers.heartbeat(db, WORKER, 60.0, {row.id: 1}, SLOTS)).fenced == {}
        assert await workers.release_dead_workers(db, lease_seconds=0.0) == []
        assert await absent_since(db) is None


async def test_a_worker_without_a_heartbeat_for_its_lease_is_dead_although_it_holds_its_lock(db: Database) -> None:
    """The half of the lease that must pass between two looks begins before the lease ends."""
    async with workers.presence(db, WORKER):
        await alive(db, lease_seconds=2000.0)
        await claimed(db)
        assert await workers.release_dead_workers(db, lease_seconds=6000.0) == []
        assert await absent_since(db) is not None
        await passed(db, 2900)
        assert await workers.release_dead_workers(db, lease_seconds=6000.0) == []
        await passed(db, 200)
        assert await workers.release_dead_workers(db, lease_seconds=6000.0) == [WORKER]


async def passed(db: Database, seconds: int) -> None:
    """Moves the times of the workers back, as if so many seconds had passed."""
    ago = f"interval '{seconds} seconds'"
    await sql(db, f"UPDATE workers SET lease_until = lease_until - {ago}, absent_since = absent_since - {ago}")


async def absent_since(db: Database) -> object:
    found: object = await scalar(db, "SELECT absent_since FROM workers")
    return found


async def test_after_a_silence_of_postgres_workers_have_time_to_come_back(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alive(db)
    await claimed(db)
    watch = workers.ServerWatch()
    assert await workers.release_dead_workers(db, 3600.0, 0.0, watch) == []
    monkeypatch.setattr(workers, "POSTGRES_SILENT_SECONDS", -1.0)  # whatever passed was too long
    assert await workers.release_dead_workers(db, 0.0, 3600.0, watch) == []
    monkeypatch.undo()
    assert await workers.release_dead_workers(db, 0.0, 0.0, watch) == [WORKER]


async def test_a_second_silence_of_postgres_soon_after_the_first_counts_no_worker_as_dead(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look after the first silence found no heartbeat, and the next one came after the second."""
    watch = workers.ServerWatch()
    async with workers.presence(db, WORKER):
        await alive(db, lease_seconds=0.0)
        row = await claimed(db)
        assert await workers.release_dead_workers(db, watch=watch, lease_seconds=60.0) == []
        assert await absent_since(db) is not None
        await passed(db, 100)
        monkeypatch.setattr(workers, "POSTGRES_SILENT_SECONDS", -1.0)
        assert await workers.release_dead_workers(db, watch=watch, lease_seconds=60.0) == []
        monkeypatch.undo()
        assert (await workers.heartbeat(db, WORKER, 60.0, {row.id: 1}, SLOTS)).fenced == {}
        assert await workers.release_dead_workers(db, watch=watch, lease_seconds=60.0) == []


async def test_what_stopped_with_postgres_has_not_crashed_although_maintenance_dies_in_between(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alive(db, lease_seconds=0.0)
    row = await claimed(db)
    await passed(db, 24 * 3600)  # its last heartbeat was before Postgres started
    release_all = workers.release_all

    async def dies(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(workers, "release_all", dies)
    with pytest.raises(StoreUnavailable):
        await workers.release_dead_workers(db, lease_seconds=0.0)
    monkeypatch.setattr(workers, "release_all", release_all)
    assert await workers.release_dead_workers(db, lease_seconds=0.0) == [WORKER]
    found = await row_of(db, row.id)
    assert (found.worker, found.crashes) == (None, 0)


async def test_what_a_worker_left_behind_when_it_unregistered_is_released_and_has_not_crashed(db: Database) -> None:
    await alive(db)
    row = await claimed(db)
    await workers.unregister(db, WORKER)
    assert await workers.release_dead_workers(db) == [WORKER]
    found = await row_of(db, row.id)
    assert (found.worker, found.crashes) == (None, 0)


async def test_a_heartbeat_finds_what_no_longer_belongs_to_the_worker_and_what_does_not_run_there(db: Database) -> None:
    await alive(db)
    running, cancelled, forgotten, old = [await claimed(db) for _ in range(4)]
    await endings.cancel(db, cancelled.id, None)
    own = {running.id: 1, cancelled.id: 1, "resp_gone": 1, old.id: 0}
    result = await workers.heartbeat(db, WORKER, 60.0, own, SLOTS)
    assert result.fenced == {cancelled.id: 1, "resp_gone": 1, old.id: 0}
    assert result.orphaned == {forgotten.id: 1, old.id: 1}


async def test_a_worker_that_was_removed_loses_its_lease_at_the_next_heartbeat(db: Database) -> None:
    await alive(db, lease_seconds=0.0)
    await workers.release_dead_workers(db, lease_seconds=0.0)
    with pytest.raises(workers.LeaseLost):
        await workers.heartbeat(db, WORKER, 60.0, {}, SLOTS)
