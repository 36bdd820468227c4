"""New responses on a real Postgres: those that come together are inserted together, and fail alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.store import inserts as module
from app.store import responses
from app.store.database import Database, StoreUnavailable
from app.store.inserts import Inserter
from app.store.rows import Idempotency, NewResponse, ResponseRow
from tests.support.logs import events_of
from tests.support.rows import new_response
from tests.support.waiting import until


@pytest.fixture
async def intake(db: Database) -> AsyncIterator[Inserter]:
    made = Inserter(db)
    yield made
    await made.close()


def keyed(key: str, fingerprint: bytes = b"1", **request: Any) -> NewResponse:
    return new_response(Idempotency(key, fingerprint), **request)


async def commits(db: Database) -> int:
    """How many transactions inserted the rows that are there."""
    async with db.begin() as connection:
        return int((await connection.execute(text("SELECT count(DISTINCT xmin::text) FROM responses"))).scalar_one())


async def rows(db: Database) -> int:
    async with db.begin() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM responses"))).scalar_one())


async def test_all_that_come_at_once_are_one_commit(db: Database, intake: Inserter) -> None:
    made = [new_response(input=f"Hello {number}") for number in range(100)]
    assert await asyncio.gather(*map(intake.create, made)) == [None] * 100
    assert await commits(db) == 1
    for new in made[::10]:
        row = await responses.find(db, new.id)
        assert row is not None
        assert (row.status, row.request) == (Status.QUEUED, new.request)
        assert [event["type"] for event in await events_of(db, new.id)] == ["response.created", "response.queued"]


async def test_what_was_inserted_is_told_batch_by_batch(db: Database) -> None:
    told: list[list[str]] = []
    intake = Inserter(db, lambda batch: told.append([new.id for new in batch]))
    first, again, other = keyed("a"), keyed("a"), keyed("b")
    await asyncio.gather(*map(intake.create, (first, other)))
    await asyncio.gather(*map(intake.create, (again, new := keyed("c"))))
    assert told == [[first.id, other.id], [new.id]]
    await intake.close()


async def test_a_key_that_comes_twice_in_a_batch_is_one_response(db: Database, intake: Inserter) -> None:
    made = [keyed("a"), keyed("b"), keyed("a", b"2"), new_response(), keyed("a")]
    results = await asyncio.gather(*map(intake.create, made))
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


async def test_a_key_that_is_taken_comes_back_and_takes_no_others_with_it(db: Database, intake: Inserter) -> None:
    await intake.create(first := keyed("a"))
    made = [new_response(), keyed("a"), new_response()]
    results = await asyncio.gather(*map(intake.create, made))
    assert [result and result.id for result in results] == [None, first.id, None]
    assert await responses.find(db, made[1].id) is None


async def test_a_key_that_is_freed_in_between_is_taken(
    db: Database, intake: Inserter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await intake.create(first := keyed("a"))

    async def too_late(database: Database, project: str, key: str) -> ResponseRow | None:
        await responses.delete(database, project, first.id)
        return await responses.get_by_key(database, project, key)

    monkeypatch.setattr(module, "get_by_key", too_late)
    second = keyed("a")
    assert await intake.create(second) is None
    assert await responses.find(db, second.id) is not None


async def _wait_for_a_lock(db: Database, number: int) -> bool:
    async with db.begin() as connection:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%unnest%'")
        return int((await connection.execute(waiting)).scalar_one()) == number


async def test_two_processes_that_take_the_same_keys_the_other_way_round_do_not_wait_for_each_other(
    db: Database, services: Any
) -> None:
    other = Database(services.database_url.replace("postgresql://", "postgresql+asyncpg://"), 2)
    intakes = [Inserter(db), Inserter(other)]
    keys = [f"key-{number}" for number in range(250)]
    for turn in range(5):
        asked = [[keyed(f"{key}-{turn}") for key in ordered] for ordered in (keys, keys[::-1])]
        async with db.begin() as connection:  # so that they begin at once
            await connection.execute(text("LOCK TABLE responses IN SHARE MODE"))
            pairs = [(intake, new) for intake, made in zip(intakes, asked, strict=True) for new in made]
            creating = [asyncio.create_task(intake.create(new)) for intake, new in pairs]
            await until(lambda: _wait_for_a_lock(db, 2))
        results = await asyncio.gather(*creating)
        assert results.count(None) == 250
    assert await rows(db) == 1250
    for intake in intakes:
        await intake.close()
    await other.close()


@pytest.mark.parametrize("bad", [{"model": "a\0b"}, {"request": {"input": "\ud800"}}, {"request": {}}])
async def test_a_bad_one_fails_alone(db: Database, intake: Inserter, bad: dict[str, Any]) -> None:
    made = [new_response() for _ in range(10)]
    made[3] = replace(made[3], **bad)
    results = await asyncio.gather(*map(intake.create, made), return_exceptions=True)
    assert isinstance(results.pop(3), Exception)
    assert results == [None] * 9
    assert await rows(db) == 9


async def test_a_batch_is_not_a_gigabyte(db: Database, intake: Inserter) -> None:
    heavy = [new_response(input="x" * 1024 * 1024) for _ in range(20)]
    await asyncio.gather(*map(intake.create, heavy))
    assert await commits(db) == 2


async def test_one_whose_caller_left_before_its_turn_is_not_inserted(db: Database, intake: Inserter) -> None:
    made = [new_response(), new_response()]
    leaves, stays = (asyncio.create_task(intake.create(new)) for new in made)
    await asyncio.sleep(0)
    leaves.cancel()
    await stays
    assert await responses.find(db, made[0].id) is None


async def test_without_postgres_everybody_hears_of_it_and_afterwards_it_works(
    db: Database, intake: Inserter, services: Any
) -> None:
    await intake.create(new_response())
    await asyncio.to_thread(services.postgres.stop)
    away = await asyncio.gather(*(intake.create(new_response()) for _ in range(10)), return_exceptions=True)
    assert {type(error) for error in away} == {StoreUnavailable}
    await asyncio.to_thread(services.postgres.start)
    await asyncio.gather(*(intake.create(new_response()) for _ in range(10)))
    assert await rows(db) == 11


async def test_a_postgres_that_restarted_since_is_found_again(db: Database, intake: Inserter, services: Any) -> None:
    await intake.create(new_response())
    await asyncio.to_thread(services.postgres.restart)
    assert await intake.create(new_response()) is None
    assert await rows(db) == 2
