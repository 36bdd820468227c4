"""`longhaul audit export`: every entry once, also if changes are made at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from app.access.administration import Administration
from app.access.caller import Scope
from app.access.changes import AuditType, Changes, Operator
from app.store.database import Database
from app.store.paging import Page
from app.store.tenants import audit
from app.store.tenants.audit import AuditFilter
from app.streaming.pubsub import PubSub
from tests.integration.operations.here import ShellHere
from tests.integration.store.common import blocked
from tests.support.api import Api
from tests.support.commands import CODE, Shell


@pytest.fixture
async def shell(api: Api, admin: Administration) -> Shell:
    return ShellHere.of(api.url, (await admin.create_key(None, "admin", {Scope.ADMIN})).secret)


async def test_it_goes_on_behind_an_entry(shell: Shell, admin: Administration) -> None:
    for name in ("red", "blue"):
        await admin.create_project(name)
    _, first, second = (await shell.run("audit", "export")).lines
    assert (first["project"]["name"], second["type"]) == ("red", "project.created")
    assert first["project.created"]["data"]["name"] == "red"
    assert (await shell.run("audit", "export", "--after", first["id"])).lines == [second]
    unknown = await shell.run("audit", "export", "--after", "audit_log_none")
    assert unknown.status != 0 and "audit_log_none" in unknown.err


async def test_no_entry_appears_before_one_that_was_exported(
    db: Database, pubsub: PubSub, admin: Administration
) -> None:
    slow = Changes(db, pubsub, Operator("key_1", "192.0.2.1", "req_1"))
    async with slow.begin() as change:
        quick = asyncio.create_task(admin.create_project("quick"))
        await blocked(db)
        await change.note(AuditType.PROJECT_CREATED, "a", None, {"data": {"name": "slow"}})
    await quick
    found, _ = await audit.find_page(db, AuditFilter(), Page(10))
    assert [entry.details["data"]["name"] for entry in found] == ["slow", "quick"]
    assert (found[0].actor, found[0].address, found[0].request_id) == ("key_1", "192.0.2.1", "req_1")


async def test_with_follow_it_prints_what_is_changed_later(shell: Shell, admin: Administration) -> None:
    program = (sys.executable, "-c", CODE, "audit", "export", "--follow")
    env = {**os.environ, **shell.variables}
    following = await asyncio.create_subprocess_exec(*program, env=env, stdout=asyncio.subprocess.PIPE)
    assert following.stdout is not None
    try:
        await asyncio.wait_for(following.stdout.readline(), 60)  # of the key
        for name in ("red", "blue"):
            await admin.create_project(name)
            entry = json.loads(await asyncio.wait_for(following.stdout.readline(), 60))
            assert entry["project"]["name"] == name
    finally:
        following.kill()
        await following.communicate()
