"""The ledger of usage: the sum of what responses say of themselves, at any time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from app.queue.message import Priority
from app.store import retention
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.responses.inserts import Inserter
from app.store.rows import BatchPlace, Origin
from app.store.tenants import usage
from app.store.tenants.usage import Total, UsageFilter
from tests.integration.store.common import scalar, sql
from tests.support.logs import row_of
from tests.support.rows import WORKER, Writer, claim, new_response

DAY = timedelta(days=1)


async def claimed_by(
    db: Database,
    project: str = "default",
    key_id: str | None = None,
    priority: int = 6,
    place: BatchPlace | None = None,
) -> Writer:
    """A response that a worker has claimed, which somebody with this key has asked for."""
    new = replace(new_response(None, project), origin=Origin(key_id), priority=priority, place=place)
    if priority == Priority.WINDOW:
        new = replace(new, window_seconds=3600.0)
    await Inserter(db).create(new)
    row = await claim(db, new.id, WORKER)
    assert row is not None
    return Writer(row)


async def finished(db: Database, *who: Any, **more: Any) -> str:
    writer = await claimed_by(db, *who, **more)
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.finish()])
    return writer.row.id


async def ledger(db: Database, project: str | None = None) -> list[Total]:
    now = datetime.now(UTC)
    groups, projects = ("project_id", "api_key_id", "model", "service_tier"), [] if project is None else [project]
    return await usage.read(db, UsageFilter(now - DAY, now + DAY, "minute", groups, projects), 1000)


def totals(rows: list[Total]) -> tuple[int, int, int]:
    return sum(r.requests for r in rows), sum(r.input_tokens for r in rows), sum(r.output_tokens for r in rows)


async def test_the_ledger_is_by_project_key_model_and_tier(db: Database) -> None:
    await finished(db)
    await finished(db, "proj_a", "key_1")
    await finished(db, "proj_a", "key_1")
    await finished(db, "proj_a", "key_2", priority=1)
    await finished(db, "proj_a", "key_2", priority=9)
    await finished(db, "proj_a", "key_3", priority=Priority.WINDOW)
    for _ in range(2):
        found = {tuple(row.group.values()) for row in await ledger(db)}
        assert found == {
            ("default", None, "scripted", "default"),
            ("proj_a", "key_1", "scripted", "default"),
            ("proj_a", "key_2", "scripted", "flex"),
            ("proj_a", "key_2", "scripted", "priority"),
            ("proj_a", "key_3", "scripted", "default"),
        }
        assert totals(await ledger(db)) == (6, 6, 12)
        assert totals(await ledger(db, "proj_a")) == (5, 5, 10)
        await usage.add_up(db, 100)


async def test_the_ledger_tells_lines_of_batches_apart(db: Database) -> None:
    await finished(db)
    await finished(db, place=BatchPlace("batch_a", 1, "first", 3600.0))
    now = datetime.now(UTC)
    for _ in range(2):
        asked = UsageFilter(now - DAY, now + DAY, "minute", ["batch"])
        assert [(row.group, row.requests) for row in await usage.read(db, asked, 10)] == [
            ({"batch": False}, 1),
            ({"batch": True}, 1),
        ]
        for batch in (True, False):
            assert totals(await usage.read(db, replace(asked, batch=batch), 10))[0] == 1
        await usage.add_up(db, 100)


async def test_the_ledger_outlives_its_responses(db: Database) -> None:
    response_id = await finished(db, "proj_a")
    await endings.delete(db, "proj_a", response_id)
    assert totals(await ledger(db)) == (1, 1, 2)


async def test_a_response_that_is_cut_off_counts_with_the_tokens_of_its_log(db: Database) -> None:
    for end in (partial(endings.cancel, project=None), partial(endings.fail, code="server_error", message="Away.")):
        writer = await claimed_by(db, "proj_a", "key_1")
        for entry in (writer.begin(40, 30), writer.say("Hi", 7), writer.say("there", 8)):
            await logs.append(db, [entry])
        await end(db, writer.row.id)
        assert (await row_of(db, writer.row.id)).usage is None
    assert totals(await ledger(db, "proj_a")) == (2, 80, 4)
    assert sum(row.cached_tokens for row in await ledger(db)) == 60


async def test_a_response_that_never_ran_is_not_in_it(db: Database) -> None:
    new = new_response()
    await Inserter(db).create(new)
    await endings.cancel(db, new.id, None)
    assert await ledger(db) == []


async def test_copies_of_maintenance_add_up_each_note_once(db: Database) -> None:
    for number in range(12):
        await finished(db, f"proj_{number % 3}")
    seen = []

    async def look() -> None:
        while len(seen) < 9:
            seen.append(totals(await ledger(db)))

    await asyncio.gather(look(), *(usage.add_up(db, 2) for _ in range(9)))
    assert set(seen) == {(12, 12, 24)}
    assert await scalar(db, "SELECT count(*) FROM usage_entries") == 0
    assert totals(await ledger(db)) == (12, 12, 24)


async def test_the_ledger_forgets_what_is_old(db: Database) -> None:
    await finished(db)
    await usage.add_up(db, 10)
    now = datetime.now(UTC)
    assert await retention.delete_records(db, now - DAY) == 0
    assert len(await ledger(db)) == 1
    assert await retention.delete_records(db, now + DAY) == 1
    assert await ledger(db) == []


async def test_the_audit_log_and_keys_that_ended_are_deleted_in_batches(db: Database) -> None:
    entries = """
        INSERT INTO audit_logs (id, effective_at, type, resource, details)
        SELECT 'audit_' || n, now() - make_interval(days => 28 + n), 'project.created', 'a', '{}'
        FROM generate_series(1, 5) n
    """
    keys = """
        INSERT INTO api_keys (id, project, name, hash, shown, scopes, created_at, expires_at, revoked_at)
        SELECT 'key_' || n, 'default', 'a', sha256(CAST(n AS text)::bytea), 'a', '{read}', now() - interval '9 days',
            CASE WHEN n <= 2 THEN now() - make_interval(days => n) END, CASE n WHEN 3 THEN now() - interval '4 days' END
        FROM generate_series(1, 4) n
    """
    await sql(db, entries)
    await sql(db, keys)
    before = datetime.now(UTC) - 1.5 * DAY
    assert await retention.delete_records(db, before, 2) == 2 + 2
    assert await retention.delete_records(db, before, 2) == 2
    assert await retention.delete_records(db, before, 2) == 0
    assert await retention.delete_records(db, datetime.now(UTC) - 0.5 * DAY, 2) == 1, "the key; entries stay for longer"
    left = await sql(db, "SELECT id FROM audit_logs UNION ALL SELECT id FROM api_keys ORDER BY id")
    assert [row.id for row in left] == ["audit_1", "key_4"]
