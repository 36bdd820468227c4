"""`longhaul audit export`: every entry once, also if changes are made at the same time."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import text
from typer.testing import CliRunner

from app.access.administration import Administration
from app.access.changes import AuditType, Changes, Operator
from app.cli import cli
from app.local.commands.audit import _entries
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.celery_processes import ROOT
from tests.support.upping import LONGHAUL
from tests.support.waiting import until


async def exported(services: Any, *arguments: str) -> Result:
    env = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url}
    return await asyncio.to_thread(CliRunner(env=env).invoke, cli, ["audit", "export", *arguments])


async def test_it_goes_on_behind_an_entry(services: Any, db: Database, admin: Administration) -> None:
    for name in ("red", "blue"):
        await admin.create_project(name)
    first, second = (json.loads(line) for line in (await exported(services)).stdout.splitlines())
    assert (first["details"]["data"]["name"], second["type"]) == ("red", "project.created")
    assert {"id", "effective_at", "actor", "address", "request_id", "resource"} <= first.keys()
    rest = await exported(services, "--after", first["id"])
    assert [json.loads(line) for line in rest.stdout.splitlines()] == [second]
    unknown = await exported(services, "--after", "audit_log_none")
    assert unknown.exit_code != 0 and "no entry 'audit_log_none'" in unknown.output


async def test_no_entry_appears_before_one_that_was_exported(
    db: Database, pubsub: PubSub, admin: Administration
) -> None:
    slow = Changes(db, pubsub, Operator("key_1", "192.0.2.1", "req_1"))
    async with slow.begin() as change:
        quick = asyncio.create_task(admin.create_project("quick"))
        await until(partial(_waits_for_its_turn, db))
        await change.note(AuditType.PROJECT_CREATED, "a", None, {"data": {"name": "slow"}})
    await quick
    entries, _ = await _entries(db, None)
    assert [entry.details["data"]["name"] for entry in entries] == ["slow", "quick"]
    assert (entries[0].actor, entries[0].address, entries[0].request_id) == ("key_1", "192.0.2.1", "req_1")


async def _waits_for_its_turn(db: Database) -> bool:
    return bool(await db.execute(text("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")))


async def test_with_follow_it_prints_what_is_changed_later(
    services: Any, db: Database, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", services.database_url)
    monkeypatch.setenv("REDIS_URL", services.redis_url)
    program = (*LONGHAUL, "audit", "export", "--follow")
    following = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert following.stdout is not None
    try:
        for name in ("red", "blue"):
            await admin.create_project(name)
            entry = json.loads(await asyncio.wait_for(following.stdout.readline(), 60))
            assert entry["details"]["data"]["name"] == name
    finally:
        following.kill()
        await following.communicate()
