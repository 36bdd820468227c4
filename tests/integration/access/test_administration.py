"""Making, listing, rotating and ending keys and projects."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES, Scope
from app.access.changes import AdministrationError, Changes
from app.access.new_keys import create_first_key, create_given_key
from app.access.secret import hash_of, new_secret, shown
from app.access.service_accounts import ServiceAccounts
from app.store.database import Database
from app.store.tenants import api_keys, limits, projects, service_accounts
from app.store.tenants.projects import EVERYTHING
from app.streaming.pubsub import PubSub
from config.settings import load_settings
from tests.integration.store.common import blocked
from tests.support.tenants import keys_of
from tests.support.waiting import until


async def test_postgres_never_holds_a_key(admin: Administration, db: Database) -> None:
    made = await admin.create_key("default", "mine", {Scope.RESPONSES})
    dumped = str(await db.execute(text("SELECT api_keys::text FROM api_keys")))
    assert made.secret not in dumped and made.secret[10:-4] not in dumped
    (row,) = await keys_of(admin.db, "default")
    assert (row.hash, row.shown) == (hash_of(made.secret), shown(made.secret))
    assert (row.project, row.name, row.scopes) == ("default", "mine", ["responses"])
    assert row.expires_at is row.last_used_at is row.revoked_at is None


async def test_what_a_project_may_use_is_names_or_all_but_names(admin: Administration) -> None:
    narrow = await admin.create_project("narrow", models=["a", "b"], tool_servers=[])
    wider = await admin.change_project(narrow.id, models=["*"], tool_servers=["*", "!python"])
    assert (wider.models, wider.tool_servers) == (EVERYTHING, {"*", "!python"})
    assert (await admin.change_project(narrow.id, models=["a"])).tool_servers == {"*", "!python"}, (
        "what is left out stays"
    )
    with pytest.raises(AdministrationError, match=r"'!a' takes a name from '\*'"):
        await admin.change_project(narrow.id, models=["!a", "b"])


async def test_names_have_bounds(admin: Administration) -> None:
    for name in ("", "x" * 201, "two\nlines", "nul\0"):
        with pytest.raises(AdministrationError, match="1 to 200 printable characters"):
            await admin.create_project(name)


async def test_a_project_s_key_is_no_operator_s_key(admin: Administration) -> None:
    sets: list[tuple[str | None, set[Scope]]] = [("default", {Scope.ADMIN}), ("default", {Scope.OPERATOR})]
    for project, scopes in (*sets, (None, {Scope.RESPONSES}), ("default", set())):
        with pytest.raises(AdministrationError, match="has scopes of: "):
            await admin.create_key(project, "mine", scopes)


async def test_a_new_project_begins_with_the_limits_that_the_setting_names_and_the_audit_log_has_them(
    db: Database, pubsub: PubSub, admin: Administration
) -> None:
    old = await admin.create_project("old")
    set_to = load_settings(new_project_limits="requests_per_minute=600, tokens_per_day=5000").new_project_limits
    new = await Administration(Changes(db, pubsub), set_to).create_project("new")
    found = [(row.project, row.model, row.kind.value, row.value) for row in await limits.find(admin.db, new.id)]
    assert found == [(new.id, "*", "requests_per_minute", 600), (new.id, "*", "tokens_per_day", 5000)]
    known = await projects.find(db, [old.id, new.id])
    assert (known[old.id].is_limited, known[new.id].is_limited) == (False, True)
    noted = await db.execute(text("SELECT type FROM audit_logs WHERE project = :id"), {"id": new.id})
    assert {row.type for row in noted} == {"project.created", "rate_limit.updated"}


async def test_projects_and_keys_that_are_made_at_once_keep_their_bounds(
    admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.access.administration.MAX_PROJECTS", 3)
    monkeypatch.setattr("app.access.new_keys.MAX_KEYS", 2)
    projects_made = await asyncio.gather(*(admin.create_project(f"{n}") for n in range(8)), return_exceptions=True)
    assert sum(isinstance(each, AdministrationError) for each in projects_made) == 6
    async with admin.db.autocommit() as connection:
        assert await projects.count(connection) == 3
    for project, scopes in ((None, OPERATOR_SCOPES), ("default", PROJECT_SCOPES)):
        creating = (admin.create_key(project, f"{n}", scopes) for n in range(8))
        made = await asyncio.gather(*creating, return_exceptions=True)
        assert sum(isinstance(each, AdministrationError) for each in made) == 6
        works = await keys_of(admin.db, project)
        assert len(works) == 2
        await admin.revoke_key(works[0].id)
        await admin.create_key(project, "another", scopes)


async def test_a_rotation_at_the_bound_leaves_no_overlap(
    admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.access.new_keys.MAX_KEYS", 1)
    old = await admin.create_key("default", "mine", PROJECT_SCOPES)
    with pytest.raises(AdministrationError, match="1 working keys"):
        await admin.rotate_key(old.row.id, 50)
    assert (await admin.key("default", old.row.id)).state == "works"
    new = await admin.rotate_key(old.row.id, 0)
    assert [row.id for row in await keys_of(admin.db, "default") if row.state == "works"] == [new.row.id]


async def test_a_key_is_revoked_once_and_rotated_no_more(admin: Administration) -> None:
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    first = await admin.revoke_key(made.row.id)
    assert first.revoked_at is not None
    assert (await admin.revoke_key(made.row.id)).revoked_at == first.revoked_at
    with pytest.raises(AdministrationError, match="works no longer"):
        await admin.rotate_key(made.row.id)
    with pytest.raises(AdministrationError, match="no key 'key_none'"):
        await admin.revoke_key("key_none")


async def test_rotation_lets_both_keys_work_for_the_overlap(admin: Administration) -> None:
    old = await admin.create_key("default", "mine", {Scope.READ}, 1000)
    new = await admin.rotate_key(old.row.id, 50)
    before, after = await keys_of(admin.db, "default")
    assert (before.id, after.id) == (old.row.id, new.row.id)
    assert (after.project, after.name, after.scopes) == ("default", "mine", ["read"])
    assert before.remaining_seconds is not None and 0 < before.remaining_seconds <= 50
    assert after.expires_at is not None and after.expires_at - after.created_at == timedelta(seconds=1000)
    assert new.secret != old.secret


async def test_a_key_that_is_rotated_twice_makes_keys_that_last_as_it_was_to(admin: Administration) -> None:
    for lifetime in (None, 1000.0):
        old = await admin.create_key("default", "mine", PROJECT_SCOPES, lifetime)
        for _ in range(2):
            made = (await admin.rotate_key(old.row.id, 50)).row
            lasts = None if made.expires_at is None else (made.expires_at - made.created_at).total_seconds()
            assert lasts == lifetime


async def test_rotation_never_lengthens_a_key_s_life(admin: Administration) -> None:
    old = await admin.create_key("default", "mine", PROJECT_SCOPES, 10)
    await admin.rotate_key(old.row.id, 1000)
    before, _ = await keys_of(admin.db, "default")
    assert before.expires_at == old.row.expires_at


async def test_a_key_cannot_be_rotated_while_its_service_account_is_deleted(
    admin: Administration, db: Database, pubsub: PubSub
) -> None:
    accounts = ServiceAccounts(Changes(db, pubsub))
    account, key = await accounts.create("default", "jobs", None)

    async with db.begin() as connection:
        await projects.lock(connection, "default")
        rotating = asyncio.create_task(admin.rotate_key(key.row.id))
        await blocked(db)
        await service_accounts.change(connection, account.id, revokes=True)
    with pytest.raises(AdministrationError, match="works no longer"):
        await rotating


async def test_processes_that_start_together_make_one_first_key(db: Database, admin: Administration) -> None:
    kept: list[str] = []
    made = await asyncio.gather(*(create_first_key(db, kept.append) for _ in range(5)))
    assert sorted(made) == [False] * 4 + [True]
    (row,) = await keys_of(admin.db, None)
    assert row.hash == hash_of(kept[0]) and {Scope(name) for name in row.scopes} == OPERATOR_SCOPES
    assert not await create_first_key(db, kept.append)
    await admin.revoke_key(row.id)
    assert await create_first_key(db, kept.append), "nobody could administer this deployment"
    secret = new_secret()
    made = await asyncio.gather(*(create_given_key(db, secret) for _ in range(5)))
    assert sorted(made) == [False] * 4 + [True], "one that they are given is made once, too"
    row = (await keys_of(admin.db, None))[-1]
    assert row.hash == hash_of(secret) and {Scope(name) for name in row.scopes} == OPERATOR_SCOPES


async def test_a_given_key_that_cannot_administer_is_refused(db: Database, admin: Administration) -> None:
    with pytest.raises(AdministrationError, match="it is no API key"):
        await create_given_key(db, "hunter2")
    secret = new_secret()
    await create_given_key(db, secret)
    (row,) = await keys_of(admin.db, None)
    await admin.revoke_key(row.id)
    with pytest.raises(AdministrationError, match="this key is revoked"):
        await create_given_key(db, secret)
    of_a_project = await admin.create_key("default", "mine", PROJECT_SCOPES)
    with pytest.raises(AdministrationError, match=f"this key is {of_a_project.row.id}, which may not administer"):
        await create_given_key(db, of_a_project.secret)


async def test_a_first_key_that_cannot_be_kept_is_not_made(db: Database, admin: Administration) -> None:
    def fail(_: str) -> None:
        raise LookupError("the disk is full")

    with pytest.raises(LookupError, match="full"):
        await create_first_key(db, fail)
    assert await keys_of(admin.db, None) == []


async def test_uses_that_processes_note_in_other_orders_wait_for_no_circle(db: Database) -> None:
    insert = """
        INSERT INTO api_keys (id, project, name, hash, shown, scopes, created_at)
        SELECT 'key_' || n, 'default', 'a', sha256(CAST(n AS text)::bytea), 'a', '{read}', now()
        FROM generate_series(1000, 9999) n
    """
    first, middle, last = "key_2000", "key_5000", "key_8000"
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    async with db.autocommit() as connection:
        await connection.execute(text(insert))
        await connection.execute(text("ANALYZE api_keys"))
        async with db.begin() as holder:
            await holder.execute(text("SELECT id FROM api_keys WHERE id = :id FOR UPDATE"), {"id": middle})
            notes = [
                asyncio.create_task(api_keys.mark_used(db, dict.fromkeys(ids, 1.0)))
                for ids in ((first, middle, last), (last, middle, first))
            ]

            async def both_wait() -> bool:
                return bool((await connection.execute(waiting)).scalar_one() == 2)

            await until(both_wait, what="both notes to wait for a key")
        await asyncio.gather(*notes)
        used = await connection.execute(text("SELECT id FROM api_keys WHERE last_used_at IS NOT NULL ORDER BY id"))
        assert list(used.scalars()) == [first, middle, last]


async def test_the_time_of_a_use_never_goes_back(db: Database, admin: Administration) -> None:
    made = await admin.create_key("default", "mine", PROJECT_SCOPES)
    await api_keys.mark_used(db, {made.row.id: 1.0})
    (row,) = await keys_of(admin.db, "default")
    await api_keys.mark_used(db, {made.row.id: 100.0})
    assert row.last_used_at is not None
    assert (await keys_of(admin.db, "default"))[0].last_used_at == row.last_used_at
