"""Inserting on a real Postgres: responses that come together are inserted together, and fail alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.sizes import LARGE_BYTES
from app.store.database import Database, StoreUnavailable
from app.store.responses import endings, lookup
from app.store.responses import inserts as module
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse
from app.store.rows import Idempotency, ResponseFlags
from tests.integration.store.common import blocked, scalar
from tests.support.limited import limited_project, reserving
from tests.support.logs import events_of
from tests.support.requests import message
from tests.support.rows import new_response
from tests.support.waiting import until


def keyed(key: str, fingerprint: bytes = b"1", **request: Any) -> NewResponse:
    return new_response(Idempotency(key, fingerprint), **request)


async def rows(db: Database) -> int:
    return int(await scalar(db, "SELECT count(*) FROM responses"))


async def test_responses_that_come_together_are_one_commit(db: Database, inserter: Inserter) -> None:
    made = [new_response(input=[message(f"Hello {number}")]) for number in range(100)]
    assert await asyncio.gather(*map(inserter.create, made)) == [None] * 100
    assert await scalar(db, "SELECT count(DISTINCT CAST(xmin AS text)) FROM responses") == 1
    for new in made[::10]:
        row = await lookup.find(db, new.id)
        assert row is not None
        assert (row.status, row.request) == (Status.QUEUED, new.request)
        assert [event["type"] for event in await events_of(db, new.id)] == ["response.created", "response.queued"]


async def test_a_key_that_comes_twice_in_a_batch_is_one_response(db: Database, inserter: Inserter) -> None:
    made = [keyed("a"), keyed("b"), keyed("a", b"2"), new_response(), keyed("a")]
    results = await asyncio.gather(*map(inserter.create, made))
    assert [result is None for result in results].count(True) == 3
    winner = next(new for new, result in zip(made, results, strict=True) if result is None and _key(new) == "a")
    for new, result in zip(made, results, strict=True):
        if _key(new) == "a" and new is not winner:
            assert result is not None
            assert winner.idempotency is not None
            assert (result.id, result.fingerprint) == (winner.id, winner.idempotency.fingerprint)
    assert await rows(db) == 3


def _key(new: NewResponse) -> str | None:
    return new.idempotency.key if new.idempotency else None


async def test_a_key_that_is_freed_meanwhile_can_be_used(
    db: Database, inserter: Inserter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await inserter.create(first := keyed("a"))

    async def too_late(database: Database, project: str, key: str) -> ResponseFlags | None:
        await endings.delete(database, project, first.id)
        return await lookup.get_by_key(database, project, key)

    monkeypatch.setattr(module, "get_by_key", too_late)
    second = keyed("a")
    assert await inserter.create(second) is None
    assert await lookup.find(db, second.id) is not None


async def test_two_processes_that_insert_the_same_keys_in_opposite_order_do_not_deadlock(
    db: Database, services: Any
) -> None:
    other = Database(services.database_url, 2)
    inserters = [Inserter(db), Inserter(other)]
    keys = [f"key-{number}" for number in range(100)]
    for turn in range(2):
        asked = [[keyed(f"{key}-{turn}") for key in ordered] for ordered in (keys, keys[::-1])]
        async with db.begin() as connection:  # so that they begin at once
            await connection.execute(text("LOCK TABLE responses IN SHARE MODE"))
            pairs = [(inserter, new) for inserter, made in zip(inserters, asked, strict=True) for new in made]
            creating = [asyncio.create_task(inserter.create(new)) for inserter, new in pairs]
            await blocked(db, 2)
        results = await asyncio.gather(*creating)
        assert results.count(None) == 100
    assert await rows(db) == 200
    for inserter in inserters:
        await inserter.close()
    await other.close()


async def test_a_bad_request_fails_alone(db: Database, inserter: Inserter) -> None:
    changes: list[dict[str, Any]] = [{"model": "a\0b"}, {"request": {"input": "\ud800"}}, {"request": {}}]
    for number, bad in enumerate(changes, 1):
        made = [new_response() for _ in range(5)]
        made[3] = replace(made[3], **bad)
        results = await asyncio.gather(*map(inserter.create, made), return_exceptions=True)
        assert isinstance(results.pop(3), Exception), bad
        assert results == [None] * 4
        assert await rows(db) == 4 * number


async def test_others_do_not_wait_for_the_insert_of_a_large_request(db: Database, inserter: Inserter) -> None:
    await inserter.create(keyed("a"))
    async with db.begin() as connection:
        await connection.execute(text("DELETE FROM responses"))  # whoever inserts that key waits for the commit
        large = asyncio.create_task(inserter.create(keyed("a", input="x" * 2 * LARGE_BYTES)))
        await blocked(db)
        assert await inserter.create(new_response()) is None
        assert not large.done()
    assert await large is None


@pytest.mark.parametrize("limited", [False, True])
async def test_a_project_s_large_request_waits_for_one_of_each_other_project(
    db: Database, inserter: Inserter, limited: bool
) -> None:
    for name in ("greedy", "modest"):
        await limited_project(db, name, unfinished_responses=100)

    def large(name: str) -> asyncio.Task[object]:
        new = reserving(name, input="x" * 2 * LARGE_BYTES)
        return asyncio.create_task(inserter.create(new if limited else replace(new, reserving=None)))

    greedy = [large("greedy") for _ in range(20)]
    await until(lambda: any(task.done() for task in greedy))
    await large("modest")
    assert sum(task.done() for task in greedy) < 10
    await asyncio.gather(*greedy)


async def test_a_response_whose_caller_left_before_its_batch_is_not_inserted(db: Database, inserter: Inserter) -> None:
    made = [new_response(), new_response()]
    leaves, stays = (asyncio.create_task(inserter.create(new)) for new in made)
    await asyncio.sleep(0)
    leaves.cancel()
    await stays
    assert await lookup.find(db, made[0].id) is None


async def test_without_postgres_every_caller_gets_store_unavailable_and_afterwards_inserts_work(
    db: Database, inserter: Inserter, services: Any
) -> None:
    await inserter.create(new_response())
    await asyncio.to_thread(services.postgres.stop)
    away = await asyncio.gather(*(inserter.create(new_response()) for _ in range(10)), return_exceptions=True)
    assert {type(error) for error in away} == {StoreUnavailable}
    await asyncio.to_thread(services.postgres.start)
    await asyncio.gather(*(inserter.create(new_response()) for _ in range(10)))
    await asyncio.to_thread(services.postgres.restart)
    assert await inserter.create(new_response()) is None, "idle connections that were cut are replaced"
    assert await rows(db) == 12
