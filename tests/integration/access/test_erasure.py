"""Erasing a project: everything of it goes, and of the others nothing, whoever is killed meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from app.access import erasure
from app.access.administration import Administration
from app.access.caller import Scope
from app.access.erasure import erase_due
from app.announcer import Announcer
from app.protocol.limits import LimitKind
from app.protocol.status import Status
from app.store.batches import changes as batch_changes
from app.store.batches import rows as rows_of_batches
from app.store.context import conversations
from app.store.context.conversations import ConversationRow, NewItem
from app.store.database import Database
from app.store.files.parts import PartWriter
from app.store.files.rows import NewFile
from app.store.responses import endings, lookup
from app.store.responses.inserts import insert_lines
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from app.store.tenants import limits, projects
from app.store.tenants.erasure import SETTLE_SECONDS, Erasure
from app.streaming.pubsub import PubSub
from tests.support.requests import message
from tests.support.roles import as_role
from tests.support.rows import WORKER, claim, new_batch, new_line, queued
from tests.support.stored import stored
from tests.support.webhooks import endpoint

TABLES = ("files", "file_parts", "responses", "conversations", "conversation_items")
TABLES += ("api_keys", "limits", "settlements", "webhook_endpoints", "webhook_deliveries")


async def sql(db: Database, statement: str, **values: Any) -> Any:
    found = await db.execute(text(statement), values)
    return found[0][0] if found else None


async def filed(db: Database, project: str, file_id: str, data: bytes = b"Hello!") -> None:
    writer = PartWriter(db, project, f"part_of_{file_id}")
    await writer.open(len(data))
    await writer.write(data)
    await writer.finish_file(NewFile(file_id, "a.txt", "user_data", None))


async def filled(db: Database, admin: Administration, project: str | None = None) -> str:
    """A project (made here, or the one named) with everything that a project may have."""
    if project is None:
        project = (await admin.create_project("team")).id
    await admin.create_key(project, "laptop", [Scope.RESPONSES])
    await admin.set_limits(project, "*", {LimitKind.STORED_BYTES: 10**9})
    row = ConversationRow(f"conv_{project}", project, {}, datetime.now(UTC))
    await conversations.create(db, row, [NewItem.of({**message("Hi"), "id": "msg_1"})])
    for number in range(2):
        await filed(db, project, f"file_{project}_{number}")
    await PartWriter(db, project, f"part_{project}").open(None)
    for number in range(4):
        response_id = await queued(db, project, store=number % 2 == 0)
        if number < 2:
            await endings.cancel(db, response_id, project)
    await claim(db, response_id, WORKER)
    await endpoint(db, project=project, name=project)
    await endings.cancel(db, await queued(db, project, background=True), project)
    return project


async def rows(db: Database, project: str) -> dict[str, int]:
    counted = {name: await sql(db, f"SELECT count(*) FROM {name} WHERE project = :p", p=project) for name in TABLES}
    return {name: count for name, count in counted.items() if count}


class NoWorkers:
    async def revoke(self, *response_ids: str) -> None: ...


async def erase(db: Database, pubsub: PubSub, seconds: float = SETTLE_SECONDS) -> None:
    await erase_due(as_role(db, MAINTENANCE), pubsub, Announcer(pubsub, NoWorkers()), seconds)  # type: ignore[arg-type]


async def entries(db: Database, project: str) -> list[str]:
    return list(await sql(db, "SELECT array_agg(type ORDER BY id) FROM audit_logs WHERE project = :p", p=project))


async def test_everything_of_a_project_goes_and_nothing_of_another(
    db: Database, pubsub: PubSub, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "BATCH", 2)
    mine, other = await filled(db, admin), await filled(db, admin)
    before = await rows(db, other)
    row = await admin.erase_project(mine)
    assert row.archived_at is not None and row.erase_at is not None
    await erase(db, pubsub)
    assert await rows(db, mine) != {}, "processes may not know yet that its keys have ended"
    await erase(db, pubsub, 0)
    assert await rows(db, mine) == {}
    assert await rows(db, other) == before
    assert await stored(db, mine) == 0
    assert await sql(db, "SELECT count(*) FROM usage_entries WHERE project = :p", p=mine) > 0, "its ledger stays"
    done = (await projects.find(db, [mine]))[mine]
    assert done.erased_at is not None and done.erase_at is None
    assert (await entries(db, mine))[-3:] == ["project.archived", "project.updated", "project.deleted"]
    await erase(db, pubsub, 0)
    assert (await entries(db, mine)).count("project.deleted") == 1


async def test_running_responses_are_cancelled_before_they_are_deleted(
    db: Database, pubsub: PubSub, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = (await admin.create_project("team")).id
    response_id = await queued(db, project)
    await claim(db, response_id, WORKER)
    await admin.erase_project(project)
    cancelled: list[Any] = []

    async def seen(chunks: list[Any]) -> None:
        if ended := [chunk.response_id for chunk in chunks if chunk.final]:
            row = await lookup.find(db, response_id)
            assert getattr(row, "status", None) is Status.CANCELLED
            cancelled.extend(ended)

    monkeypatch.setattr(pubsub, "publish", seen)
    await erase(db, pubsub, 0)
    assert cancelled == [response_id] and await rows(db, project) == {}


async def test_an_erasure_that_was_killed_is_finished_by_another_process(
    db: Database, pubsub: PubSub, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = await filled(db, admin)
    await admin.erase_project(project)

    delete = Erasure.delete

    async def killed(erasure: Erasure, on: Database, what: str, limit: int) -> int:
        if what == "conversations":
            raise KeyboardInterrupt
        return await delete(erasure, on, what, limit)

    with monkeypatch.context() as patched:
        patched.setattr(Erasure, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            await erase(db, pubsub, 0)
    halfway = await rows(db, project)
    assert "conversations" in halfway and "responses" not in halfway
    await erase(db, pubsub, 0)
    assert await rows(db, project) == {}
    assert (await entries(db, project)).count("project.deleted") == 1


async def test_an_erasure_may_begin_days_later(db: Database, pubsub: PubSub, admin: Administration) -> None:
    project = await filled(db, admin)
    await admin.erase_project(project, 30)
    await erase(db, pubsub, 0)
    assert "responses" in await rows(db, project)
    await sql(db, "UPDATE projects SET erase_at = erase_at - interval '30 days'")
    await erase(db, pubsub, 0)
    assert await rows(db, project) == {}


async def test_the_default_project_loses_what_it_had_and_stays(
    db: Database, pubsub: PubSub, admin: Administration
) -> None:
    await filled(db, admin, DEFAULT_PROJECT)
    row = await admin.erase_project(DEFAULT_PROJECT)
    assert row.archived_at is None
    later = await queued(db)
    await erase(db, pubsub, 0)
    assert await rows(db, DEFAULT_PROJECT) == {"responses": 1, "api_keys": 1, "limits": 1, "webhook_endpoints": 1}
    assert await lookup.find(db, later) is not None
    assert (await limits.find(db, DEFAULT_PROJECT)) != []


async def batch_of(db: Database, project: str) -> tuple[str, list[str]]:
    """An unfinished batch whose first three lines are responses: one has ended, one runs, one waits."""
    await filed(db, project, f"file_of_{project}")
    batch_id = await new_batch(db, f"batch_{project}", project, lines=5, file_id=f"file_of_{project}")
    ids = await lines_of(db, project, batch_id, 1, 2, 3)
    await endings.cancel(db, ids[0], project)
    await claim(db, ids[1], WORKER)
    return batch_id, ids


async def lines_of(db: Database, project: str, batch_id: str, *numbers: int) -> list[str]:
    lines = [new_line(batch_id, number, project) for number in numbers]
    async with db.begin() as connection:
        await insert_lines(connection, lines)
        await batch_changes.advance(connection, batch_id, numbers[-1], 0)
    return [each.id for each in lines]


async def test_what_an_unfinished_batch_has_written_of_its_files_goes_with_it(
    db: Database, pubsub: PubSub, admin: Administration
) -> None:
    """Parts that belong to no file yet hold outputs."""
    project = (await admin.create_project("a")).id
    await filed(db, project, "file_a")
    output, errors = (PartWriter(db, project, f"part_{name}") for name in ("output", "errors"))
    await new_batch(db, "batch_a", project)
    for part in (output, errors):
        await part.open(6)
        await part.write(b"answer")
        await part.flush()
    async with db.begin() as connection:
        for part in (output, errors):
            await part.finish_within(connection)
        await batch_changes.validated(connection, "batch_a", 2, None)
        await batch_changes.advance(connection, "batch_a", 2, 10)
        await batch_changes.note_written(connection, "batch_a", 2, [output.id], [errors.id], None)
    await admin.archive_project(project)
    await sql(db, "UPDATE projects SET erase_at = now() WHERE id = :id", id=project)
    await erase_due(as_role(db, MAINTENANCE), pubsub, Announcer(pubsub, None), 0.0)  # type: ignore[arg-type]
    for table in ("batches", "file_parts", "file_blocks"):
        assert await sql(db, f"SELECT count(*) FROM {table}") == 0, table
    assert await stored(db, project) == 0


async def test_an_unfinished_batch_goes_with_its_lines_and_their_results(
    db: Database, pubsub: PubSub, admin: Administration
) -> None:
    project, other = [(await admin.create_project(name)).id for name in ("mine", "other")]
    await batch_of(db, project)
    kept, _ = await batch_of(db, other)
    await admin.erase_project(project)
    await erase(db, pubsub, 0)
    assert await rows(db, project) == {}
    assert await sql(db, "SELECT array_agg(id) FROM batches") == [kept]
    assert await sql(db, "SELECT array_agg(DISTINCT batch_id) FROM batch_results") == [kept]
    assert await rows_of_batches.find(db, other, kept) is not None
