"""Drained workers, whatever becomes of their leases. test_dispatch_model.py drains, too: they are sent nothing."""

from __future__ import annotations

from app.store.database import Database
from app.store.queue import drains, redelivery, workers
from app.store.roles.rights import MAINTENANCE
from tests.integration.store.common import sql
from tests.support.roles import as_role
from tests.support.waiting_rows import sent, take, waiting, with_slots


async def drain(db: Database, node: str) -> int:
    """Returns how many responses went back in line."""
    async with db.begin() as connection:
        assert await drains.drain(connection, node, "why", None)
        return await redelivery.take_back(connection, node)


async def undrain(db: Database, node: str) -> bool:
    async with db.begin() as connection:
        return await drains.undrain(connection, node)


async def drained(db: Database) -> list[str]:
    async with db.autocommit() as connection:
        return [each.node for each in (await drains.nodes(connection)).values() if each.draining_since is not None]


async def test_a_worker_that_was_drained_has_all_of_its_slots_when_it_is_given_back(db: Database) -> None:
    """What it left lying while it was drained does not count against it."""
    await with_slots(db, 4, "w")
    await waiting(db, "a", 8)
    assert len(await sent(db)) == 4
    async with db.begin() as connection:
        await drains.drain(connection, "w", None, None)
    assert len(await redelivery.put_back(db, 1000.0)) == 4
    await undrain(db, "w")
    assert len(await sent(db)) == 4


async def test_a_worker_that_loses_its_lease_comes_back_drained(db: Database) -> None:
    await with_slots(db, 4, "w")
    await drain(db, "w")
    await workers.unregister(db, "w")
    await waiting(db, "a", 1)
    await with_slots(db, 4, "w")
    assert await sent(db) == []
    assert await drained(db) == ["w"]


async def test_a_heartbeat_tells_the_worker_that_it_is_drained(db: Database) -> None:
    await with_slots(db, 4, "w")
    await with_slots(db, 4, "v")
    await drain(db, "w")
    assert (await workers.heartbeat(db, "w", 60.0, {}, 4)).is_drained
    assert not (await workers.heartbeat(db, "v", 60.0, {}, 4)).is_drained


async def test_released_responses_do_not_go_to_a_drained_worker(db: Database) -> None:
    await with_slots(db, 4, "w")
    ids = await waiting(db, "a", 1)
    await take(db, await sent(db), "w")
    await drain(db, "w")
    async with db.begin() as connection:
        await workers.release_all(connection, "w", crashed=False)
    assert await redelivery.take_released(db) == []
    await undrain(db, "w")
    assert [each.response_id for each in await redelivery.take_released(db)] == ids


async def test_a_drain_is_forgotten_a_day_after_its_worker_was_missed_first(db: Database) -> None:
    await with_slots(db, 4, "w")
    await drain(db, "w")
    await drain(db, "gone")

    async def ages() -> set[str]:
        ago = "absent_since = absent_since - interval '13 hours', since = since - interval '9 days'"
        await sql(db, f"UPDATE drains SET {ago}")
        await drains.forget(as_role(db, MAINTENANCE))
        return {row.node for row in await sql(db, "SELECT node FROM drains")}

    assert await ages() == {"w", "gone"}
    assert await ages() == {"w", "gone"}
    assert await ages() == {"w"}
    await workers.unregister(db, "w")
    assert await ages() == {"w"}, "it was missed only now"
    await with_slots(db, 4, "w")
    assert await ages() == {"w"}
    await workers.unregister(db, "w")
    assert await ages() == {"w"}, "it was back in between"
