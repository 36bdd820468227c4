"""A database of the version before, with rows of every kind in it, is upgraded and read by this version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic import command
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.events import frames
from app.protocol.events.deltas import Finish, FinishReason, McpArguments, McpStart, Text, ToolEnded, TurnEnd, Usage
from app.protocol.events.machine import ResponseStream
from app.protocol.response import response_object
from app.protocol.status import Status
from app.store.context import conversations
from app.store.context.contents import context_items
from app.store.database import Database
from app.store.formats import FORMAT
from app.store.migrate import _config, head, migrate, revision, wait_for_schema
from app.store.queue import workers
from app.store.responses import claims, endings, logs, lookup
from app.store.rows import pack_tokens
from tests.support.requests import message, stored_request
from tests.support.rows import WORKER as NEW_WORKER
from tests.support.rows import alive, claim, claimed, queued
from tests.support.waiting import until

Json = dict[str, Any]

OLD_REVISION = "0002"
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
CALL = {"name": "s__t", "arguments": "{}", "result": "told\u0000 to the model"}
STEPS = [{"end": {"items": [0]}}, {"result": {"index": 0, "call": CALL}}]
QUEUED, RUNNING, FINISHED, CANCELLED = "resp_a1", "resp_a2", "resp_a3", "resp_a4"
WORKER, CONVERSATION = "worker-before", "conv_a1"
JSON_COLUMNS = {"request", "output", "hidden", "usage", "messages", "metadata", "item", "steps"}


@pytest.fixture
async def old(services: Any) -> AsyncIterator[Database]:
    """A database of its own, at the revision before, with a row of every kind."""
    url = make_url(services.database_url)
    server = Database(url.render_as_string(hide_password=False))
    async with server.autocommit() as connection:
        await connection.execute(text("DROP DATABASE IF EXISTS before WITH (FORCE)"))
        await connection.execute(text("CREATE DATABASE before"))
    db = Database(url.set(database="before").render_as_string(hide_password=False))
    async with db.begin() as connection:
        await connection.run_sync(lambda sync: command.upgrade(_config(sync), OLD_REVISION))
        await insert_old_rows(connection)
    yield db
    await db.close()
    async with server.autocommit() as connection:
        await connection.execute(text("DROP DATABASE before WITH (FORCE)"))
    await server.close()


async def insert(connection: AsyncConnection, table: str, **values: Any) -> None:
    """Plain SQL, because `app.store.tables` has the columns of the new schema."""
    parameters = ", ".join(f"CAST(:{name} AS json)" if name in JSON_COLUMNS else f":{name}" for name in values)
    row = {name: json.dumps(value) if name in JSON_COLUMNS else value for name, value in values.items()}
    await connection.execute(text(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({parameters})"), row)


async def insert_response(connection: AsyncConnection, response_id: str, status: Status, **columns: Any) -> Json:
    """A response's row; returns its object, as it was when it was queued."""
    stored = stored_request("a")
    row = {"id": response_id, "project": "default", "model": "scripted", "queue": "model.scripted", "priority": 6}
    row |= {"status": status.value, "background": True, "stream": True, "store": True, "request": stored}
    await insert(connection, "responses", **row, created_at=NOW, **columns)
    return response_object(stored, response_id=response_id, created_at=int(NOW.timestamp()))


async def insert_chunk(
    connection: AsyncConnection, response_id: str, events: list[Json], attempt: int, **columns: Any
) -> None:
    first = events[0]["sequence_number"]
    row = {"response_id": response_id, "first": first, "last": first + len(events) - 1, "attempt": attempt}
    row |= {"final": False, "tokens": b"", "frames": frames.encode_all(events)} | columns
    await insert(connection, "chunks", **row)


async def insert_old_rows(connection: AsyncConnection) -> None:
    row = {"id": WORKER, "model": "scripted", "queue": "model.scripted", "host": "host", "pid": 1}
    await insert(connection, "workers", **row, started_at=NOW, lease_until=NOW)

    stream = ResponseStream(await insert_response(connection, QUEUED, Status.QUEUED))
    await insert_chunk(connection, QUEUED, stream.accept(), 0)

    begun = {"attempt": 1, "started_at": NOW, "worker": WORKER}
    stream = ResponseStream(await insert_response(connection, RUNNING, Status.IN_PROGRESS, **begun))
    await insert_chunk(connection, RUNNING, stream.accept(), 0)
    await insert_chunk(connection, RUNNING, stream.begin(), 1)
    called = [event for delta in (McpStart("s", "t"), McpArguments("{}"), TurnEnd()) for event in stream.feed(delta)]
    called += stream.feed(ToolEnded(0, True, {"output": "shown"}))
    await insert_chunk(connection, RUNNING, called, 1, tokens=pack_tokens([7, 8]), steps=STEPS)

    await insert_finished(connection)
    ended = {"output": [], "finished_at": NOW}
    await insert_response(connection, CANCELLED, Status.CANCELLED, **ended, log="deleted")


async def insert_finished(connection: AsyncConnection) -> None:
    """A response that called a tool, in a conversation that has its items."""
    row = {"id": CONVERSATION, "project": "default", "metadata": {"a": "b"}, "created_at": NOW}
    await insert(connection, "conversations", **row)
    called = item(FINISHED)
    ended = {"output": [called], "hidden": {"0": CALL}, "usage": {"total_tokens": 3}, "finished_at": NOW}
    columns = {"attempt": 1, "started_at": NOW, "messages": {"input_messages": []}, "conversation_id": CONVERSATION}
    stream = ResponseStream(await insert_response(connection, FINISHED, Status.COMPLETED, **columns, **ended))
    await insert_chunk(connection, FINISHED, stream.accept(), 0)
    rest = [*stream.begin(), *stream.feed(Text("x"))]
    rest += stream.finish(Finish(FinishReason.STOP, Usage(1, 0, 2)), int(NOW.timestamp()))
    await insert_chunk(connection, FINISHED, rest, 1, final=True)
    asked = {**message("a"), "id": "msg_asked"}
    await insert(connection, "conversation_items", conversation_id=CONVERSATION, id=asked["id"], item=asked)
    said = {"conversation_id": CONVERSATION, "id": called["id"], "item": called}
    await insert(connection, "conversation_items", **said, hidden=CALL)


def item(response_id: str) -> Json:
    fields = {"server_label": "s", "name": "t", "arguments": "{}", "output": "shown", "error": None}
    item_id = f"mcp_{response_id.removeprefix('resp_')}_0"
    return {"id": item_id, "type": "mcp_call", "status": "completed", "approval_request_id": None, **fields}


async def continued(db: Database, **request: Any) -> list[Json]:
    """What a worker sees of the past that a new response continues."""
    row = await claim(db, await queued(db, **request), WORKER)
    assert row is not None
    return await context_items(db, row)


async def test_a_database_of_the_version_before_is_upgraded_with_its_rows(old: Database) -> None:
    assert await revision(old) == OLD_REVISION
    await migrate(old)
    assert await revision(old) == head()
    found = {row_id: await lookup.get(old, "default", row_id) for row_id in (QUEUED, RUNNING, FINISHED, CANCELLED)}
    statuses = [Status.QUEUED, Status.IN_PROGRESS, Status.COMPLETED, Status.CANCELLED]
    assert [row and row.status for row in found.values()] == statuses
    finished = found[FINISHED]
    assert finished is not None
    assert (finished.output, finished.usage) == ([item(FINISHED)], {"total_tokens": 3})
    assert finished.as_object()["input_messages"] == []


async def test_logs_of_the_version_before_are_read_with_their_tokens_and_steps(old: Database) -> None:
    await migrate(old)
    log = await logs.read(old, RUNNING)
    assert (log.status, log.chunks[-1].tokens, log.chunks[-1].steps) == (Status.IN_PROGRESS, (7, 8), tuple(STEPS))
    restored = ResponseStream.restore([event for chunk in log.chunks for event in frames.decode(chunk.frames)])
    assert restored.next_sequence == log.chunks[-1].last + 1
    assert (await logs.read(old, FINISHED)).ended


async def test_tool_results_of_the_version_before_reach_the_models_of_this_one(old: Database) -> None:
    await migrate(old)
    chain = await continued(old, previous_response_id=FINISHED)
    assert [each.get("call") for each in chain] == [None, CALL]
    conversation = await continued(old, conversation={"id": CONVERSATION})
    assert [each.get("call") for each in conversation] == [None, CALL]
    listed = await conversations.list_items(old, CONVERSATION, None, 20, descending=False)
    assert listed is not None
    assert [each["id"] for each in listed] == ["msg_asked", item(FINISHED)["id"]]


async def test_responses_of_the_version_before_are_claimed_taken_over_and_cancelled(old: Database) -> None:
    await migrate(old)
    assert await workers.remove_dead_workers(old) == [WORKER]
    assert await claims.release_all(old, WORKER, max_crashes=3) == []
    for response_id, attempt in ((QUEUED, 1), (RUNNING, 2)):
        row = await claim(old, response_id, "worker-after")
        assert row is not None
        assert row.attempt == attempt
        ended = await endings.cancel(old, response_id, None)
        assert ended is not None
        assert ended.row.status is Status.CANCELLED


async def test_a_migration_that_waits_for_a_backup_does_not_hold_up_the_others(old: Database) -> None:
    """A backup reads every table in one transaction, and the migration needs those tables alone."""
    async with old.begin() as backup:
        await backup.execute(text("LOCK TABLE responses IN ACCESS SHARE MODE"))
        migration = asyncio.create_task(migrate(old))
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'responses'::regclass")
        async with old.autocommit() as other:
            await until(lambda: at_least_one(other, waiting))
            found = await other.execute(text("SELECT id FROM responses WHERE id = :id"), {"id": QUEUED})
            assert found.scalar_one() == QUEUED
        assert not migration.done()
    await migration
    assert await revision(old) == head()


async def at_least_one(connection: AsyncConnection, statement: Any) -> bool:
    return bool((await connection.execute(statement)).scalar_one())


CLAIM_OF_0_2 = text(
    """
    UPDATE responses SET status = 'in_progress', attempt = attempt + 1, worker = 'worker-before',
        started_at = coalesce(started_at, now())
    WHERE id = :id AND (status = 'queued' OR status = 'in_progress' AND worker IS NULL) RETURNING id
    """
)
"""What a worker of 0.2 executes: it knows nothing of formats."""


async def claimed_by_0_2(db: Database, response_id: str) -> bool:
    async with db.autocommit() as connection:
        return (await connection.execute(CLAIM_OF_0_2, {"id": response_id})).first() is not None


async def set_format(db: Database, response_id: str, number: int) -> None:
    async with db.autocommit() as connection:
        await connection.execute(
            text("UPDATE responses SET format = :format WHERE id = :id"), {"format": number, "id": response_id}
        )


class TestFormats:
    async def test_a_worker_of_the_version_before_claims_what_its_api_accepted(self, db: Database) -> None:
        response_id = await queued(db)
        await set_format(db, response_id, 1)  # an API of 0.2 inserts rows without a format
        assert await claimed_by_0_2(db, response_id)

    async def test_a_worker_of_the_version_before_never_claims_what_this_api_accepted(self, db: Database) -> None:
        response_id = await queued(db)
        assert not await claimed_by_0_2(db, response_id)
        row = await lookup.find(db, response_id)
        assert row is not None
        assert (row.status, row.attempt, row.worker) == (Status.QUEUED, 0, None)
        assert await claim(db, response_id, NEW_WORKER) is not None

    async def test_a_log_that_this_version_continued_stays_with_this_version(self, db: Database) -> None:
        response_id = await queued(db)
        await set_format(db, response_id, 1)
        row = await claim(db, response_id, NEW_WORKER)
        assert row is not None
        await claims.release(db, response_id, row.attempt, NEW_WORKER)
        assert not await claimed_by_0_2(db, response_id)
        again = await claim(db, response_id, "another")
        assert again is not None
        assert again.attempt == 2

    async def test_claims_on_one_connection_do_not_open_it_to_the_version_before(self, db: Database) -> None:
        """The statement's own setting ends with its transaction, also in a pool of connections."""
        await asyncio.gather(*(claimed(db, f"worker-{number}") for number in range(20)))
        response_ids = [await queued(db) for _ in range(20)]
        assert not any(await asyncio.gather(*(claimed_by_0_2(db, response_id) for response_id in response_ids)))

    async def test_a_worker_leaves_a_later_format_to_a_newer_one(self, db: Database) -> None:
        response_id = await queued(db)
        await set_format(db, response_id, FORMAT + 1)
        assert await claim(db, response_id, NEW_WORKER) is None
        row = await lookup.find(db, response_id)
        assert row is not None
        assert (row.status, row.attempt) == (Status.QUEUED, 0)

    async def test_a_later_format_can_be_cancelled(self, db: Database) -> None:
        response_id = await queued(db)
        await set_format(db, response_id, FORMAT + 1)
        ended = await endings.cancel(db, response_id, None)
        assert ended is not None
        assert ended.row.status is Status.CANCELLED

    async def test_older_workers_do_not_make_an_api_ready(self, db: Database) -> None:
        await alive(db, "newer", model="one")
        await alive(db, "older", model="two")
        async with db.autocommit() as connection:
            await connection.execute(text("UPDATE workers SET format = 1 WHERE id = 'older'"))
        assert await workers.ready_models(db) == {"one"}


class TestSchemasOfOtherVersions:
    async def test_a_process_starts_with_a_later_schema_that_still_works_for_it(self, old: Database) -> None:
        await migrate(old)
        async with old.autocommit() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '9998'"))
        await wait_for_schema(old)

    async def test_a_process_waits_for_ever_if_a_later_schema_took_something_away(
        self, old: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        await migrate(old)
        async with old.autocommit() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '9998'"))
            await connection.execute(text("CREATE OR REPLACE VIEW oldest_revision AS SELECT '9997'::text AS revision"))
        (await waits_and_says(old, caplog, "this version is too old for it")).cancel()

    async def test_a_process_waits_for_the_migration(self, old: Database, caplog: pytest.LogCaptureFixture) -> None:
        waiting = await waits_and_says(old, caplog, "run `longhaul migrate`")
        await migrate(old)
        await waiting


async def waits_and_says(db: Database, caplog: pytest.LogCaptureFixture, words: str) -> asyncio.Task[None]:
    caplog.set_level("INFO", "longhaul.store")
    waiting = asyncio.create_task(wait_for_schema(db))
    await until(lambda: words in caplog.text)
    assert not waiting.done()
    return waiting
