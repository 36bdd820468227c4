"""What a process knows of keys: without queries, and no longer than they work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text

from app.access import directory as module
from app.access.administration import Administration
from app.access.caller import PROJECT_SCOPES, Scope
from app.access.changes import Changes
from app.access.directory import Directory
from app.access.known_key import ARCHIVED, DELETED, EXPIRED, REVOKED, KnownKey
from app.access.secret import new_secret
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.tenants import api_keys
from app.streaming.pubsub import PubSub
from tests.support.tenants import keys_of
from tests.support.waiting import until

NEVER = 1000.0


@pytest.fixture
async def directory(db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Directory]:
    """It never polls: what it learns, the doorbell told it."""
    monkeypatch.setattr(module, "POLL_SECONDS", NEVER)
    started = Directory(db, pubsub)
    started.start()
    yield started
    await started.close()


@pytest.fixture
async def deaf(db: Database, pubsub: PubSub) -> AsyncIterator[Directory]:
    """It learns nothing by itself: every query is a request's."""
    made = Directory(db, pubsub)
    yield made
    await made.close()


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each query asked for."""
    counted: list[int] = []
    find = api_keys.find

    async def counting(db: Database, hashes: Any) -> Any:
        counted.append(len(hashes))
        return await find(db, hashes)

    monkeypatch.setattr(api_keys, "find", counting)
    return counted


async def known(directory: Directory, secret: str) -> KnownKey:
    key = await directory.key(secret)
    assert key is not None
    return key


async def heard(pubsub: PubSub) -> None:
    """Waits until Redis has confirmed that this process listens."""
    async with pubsub.listen(module.DOORBELL) as doorbell:
        await doorbell.wait_until_confirmed()


async def test_a_known_key_costs_no_query(deaf: Directory, admin: Administration, queries: list[int]) -> None:
    made = await admin.create_key("default", "mine", {Scope.READ})
    first = await known(deaf, made.secret)
    assert (first.caller.project, first.caller.scopes, first.caller.key_id) == ("default", {Scope.READ}, made.row.id)
    assert all([await deaf.key(made.secret) is first for _ in range(100)])
    assert queries == [1]


async def test_a_key_that_does_not_exist_costs_one_query(deaf: Directory, queries: list[int]) -> None:
    unknown = new_secret()
    for _ in range(10):
        assert await deaf.key(unknown) is None
    assert queries == [1]


async def test_those_who_guess_keys_share_their_queries_and_are_forgotten(
    deaf: Directory, admin: Administration, queries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNKNOWN", 20)
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    guesses = [new_secret() for _ in range(200)]
    found = await asyncio.gather(*(deaf.key(each) for each in guesses), deaf.key(made.secret))
    assert [key for key in found if key is not None] == [await deaf.key(made.secret)]
    assert sum(queries) == 201 and len(queries) <= 2
    assert len(deaf._unknown) == 20


async def test_a_key_that_is_revoked_or_whose_project_or_overlap_ends_ends_by_the_doorbell(
    directory: Directory, admin: Administration, pubsub: PubSub
) -> None:
    project = (await admin.create_project("short-lived")).id
    made = [await admin.create_key(of, "mine", PROJECT_SCOPES) for of in ("default", project, "default")]
    revoked, archived, rotated = [await known(directory, each.secret) for each in made]
    await heard(pubsub)
    await admin.revoke_key(made[0].row.id)
    await admin.archive_project(project)
    new = await admin.rotate_key(made[2].row.id, 0)
    for key, refusal in ((revoked, REVOKED), (archived, ARCHIVED), (rotated, EXPIRED)):
        await key.ended.wait()
        assert key.refusal == refusal
    assert (await known(directory, new.secret)).refusal is None


async def test_without_redis_a_revoked_key_ends_by_a_poll(
    db: Database, admin: Administration, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    deaf = PubSub("redis://127.0.0.1:1", pubsub_key(db))
    directory = Directory(db, deaf)
    directory.start()
    try:
        made = await admin.create_key("default", "mine", PROJECT_SCOPES)
        key = await known(directory, made.secret)
        await Administration(Changes(db, deaf), {}).revoke_key(made.row.id)
        await key.ended.wait()
    finally:
        await directory.close()
        await deaf.close()


def test_a_revocation_is_known_within_five_seconds_without_redis() -> None:
    assert module.POLL_SECONDS + module.PAUSE_SECONDS < 5


async def test_a_key_ends_when_it_expires(directory: Directory, admin: Administration) -> None:
    made = await admin.create_key("default", "mine", PROJECT_SCOPES, 1.0)
    key = await known(directory, made.secret)
    await key.ended.wait()
    assert key.refusal == EXPIRED


async def test_a_key_that_is_found_during_a_look_misses_nothing(
    directory: Directory, admin: Administration, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look's query is made before the revocation, and the key is looked up after it."""
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    other = await admin.create_key("default", "other", PROJECT_SCOPES)
    await known(directory, other.secret)
    find, begun, go_on = api_keys.find, asyncio.Event(), asyncio.Event()

    async def slow(db: Database, hashes: Any) -> Any:
        found = await find(db, hashes)
        begun.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(api_keys, "find", slow)
    finding = asyncio.create_task(directory.key(made.secret))
    await begun.wait()
    async with db.begin() as connection:
        await api_keys.revoke(connection, made.row.id)
    looking = asyncio.create_task(directory.look())
    go_on.set()
    key = await finding
    await looking
    assert key is not None and key.refusal == REVOKED


async def test_a_key_whose_row_is_deleted_ends(directory: Directory, admin: Administration, db: Database) -> None:
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    key = await known(directory, made.secret)
    await db.execute(text("DELETE FROM api_keys"))
    await directory.look()
    assert key.refusal == DELETED
    assert await directory.key(made.secret) is None


async def test_the_last_use_is_noted(directory: Directory, admin: Administration) -> None:
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    with (await known(directory, made.secret)).in_use():
        pass
    await directory.close()
    (row,) = await keys_of(admin.db, "default")
    assert row.last_used_at is not None and row.last_used_at >= row.created_at


async def test_while_postgres_is_away_known_keys_work(
    directory: Directory, admin: Administration, services: Any
) -> None:
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    key = await known(directory, made.secret)
    services.postgres.stop()
    assert (await known(directory, made.secret)) is key and key.refusal is None
    services.heal()


async def test_a_project_is_read_once_and_again_when_it_changes(
    directory: Directory, admin: Administration, pubsub: PubSub
) -> None:
    project = await admin.create_project("narrow", models=["a"])
    first = await directory.project(project.id)
    assert first is not None and first.models == {"a"} and await directory.project(project.id) is first
    assert await directory.project("proj_none") is None
    await heard(pubsub)
    await admin.change_project(project.id, models=["b"])

    async def changed() -> bool:
        found = await directory.project(project.id)
        return found is not None and found.models == {"b"}

    await until(changed, what="the change of the project")
