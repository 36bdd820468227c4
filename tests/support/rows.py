"""Responses in the database, without the API and without workers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.deltas import Finish, FinishReason, Text
from app.protocol.events.machine import ResponseStream
from app.protocol.response import response_object
from app.protocol.tasks import COUNT
from app.protocol.usage import Usage
from app.queue.message import Priority
from app.store import retention
from app.store.batches import changes as batch_changes
from app.store.batches.changes import NewBatch
from app.store.context.size import find_previous
from app.store.database import Database
from app.store.queue import workers
from app.store.queue.workers import WorkerIdentity
from app.store.responses import claims, lookup
from app.store.responses.inserts import Inserter
from app.store.responses.logs import Entry
from app.store.responses.new_rows import NewResponse
from app.store.rows import BatchPlace, Ending, Idempotency, LargeRow, ResponseRow
from app.store.tables import DEFAULT_PROJECT
from tests.support.requests import message, stored_request

WORKER = "worker-1"
SLOTS = 32
"""Slots of a worker that `alive` registers."""


async def a_key() -> bytes:
    """A key for pub/sub that needs no database."""
    return b"k" * 32


async def queued(db: Database, project: str = DEFAULT_PROJECT, **request: Any) -> str:
    """A response as the API leaves it; returns its id."""
    new = new_response(None, project, **request)
    if (previous := request.get("previous_response_id")) is not None:
        found = await find_previous(db, project, previous)
        assert found is not None
        new = replace(new, chain_length=found.chain.count + 1, context_bytes=found.chain.bytes)
    await Inserter(db).create(new)
    return new.id


async def new_batch(
    db: Database,
    batch_id: str,
    project: str = DEFAULT_PROJECT,
    *,
    lines: int | None = None,
    key_id: str | None = None,
    model: str | None = None,
    queue: str | None = None,
    file_id: str = "file_a",
) -> str:
    """A batch with a window of a day, whose file nobody has read; with `lines` it has so many, which are all good."""
    async with db.begin() as connection:
        new = NewBatch(batch_id, project, key_id, "/v1/responses", file_id, "24h", 86400.0)
        await batch_changes.create(connection, new)
        if lines is not None:
            await batch_changes.validated(connection, batch_id, lines, model, queue)
    return batch_id


def new_line(batch_id: str, number: int, project: str = DEFAULT_PROJECT, **request: Any) -> NewResponse:
    """A line of a batch before its insert."""
    place = BatchPlace(batch_id, number, str(number), 60.0)
    return replace(new_response(None, project, **request), priority=Priority.WINDOW.value, place=place)


def new_response(idempotency: Idempotency | None = None, project: str = DEFAULT_PROJECT, **request: Any) -> NewResponse:
    """A response before its insert."""
    response_id = f"resp_{uuid.uuid4().hex}"
    created = datetime.now(UTC)
    stored = stored_request(**request)
    stream = ResponseStream(response_object(stored, response_id=response_id, created_at=int(created.timestamp())))
    events = stream.accept()
    opening = Chunk(response_id, 0, len(events) - 1, 0, (), frames.encode_all(events))
    queue = f"model.{stored['model']}"
    new = NewResponse(response_id, project, stored["model"], queue, 6, stored, created, opening)
    return replace(new, idempotency=idempotency)


async def alive(db: Database, worker: str = WORKER, lease_seconds: float = 60.0, model: str = "scripted") -> str:
    """Registers a worker with a lease of `lease_seconds`, but without its lock (`workers.presence`)."""
    identity = WorkerIdentity(worker, model, f"model.{model}", "host", 1, 4096, SLOTS, worker)
    await workers.register(db, identity, lease_seconds)
    return worker


async def claim(db: Database, response_id: str, worker: str) -> ResponseRow | None:
    """Claims one response, as if the worker lived at that moment."""
    async with living(db, worker):
        (row,) = await claims.claim_all(db, [(response_id, worker)])
        return await lookup.find(db, row.id) if isinstance(row, LargeRow) else row


async def released(db: Database) -> list[str]:
    """The responses that maintenance is to send to another worker, in the order of their arrival."""
    found = "SELECT id FROM responses WHERE status = 'in_progress' AND worker IS NULL AND NOT yielded ORDER BY position"
    return [row.id for row in await db.execute(text(found))]


async def merge_all(db: Database) -> int:
    """Merges the logs of all responses that have ended, short ones too; returns how many."""
    await db.execute(text("UPDATE responses SET log = 'live' WHERE log = 'merged'"))
    return await retention.merge_finished(db, datetime.now(UTC) + timedelta(seconds=1), 1000)


async def release_all(db: Database, worker: str) -> None:
    """Releases what a worker runs, as after its death."""
    async with db.begin() as connection:
        await workers.release_all(connection, worker, crashed=True)


async def crashed(db: Database, **request: Any) -> str:
    """A released response under which a worker crashed."""
    response_id = await queued(db, **request)
    await claim(db, response_id, "dead")
    await release_all(db, "dead")
    return response_id


async def long_alive(db: Database, worker: str) -> None:
    """As `alive`, of a worker that started an hour ago; so did all others then."""
    await alive(db, worker)
    await db.execute(text("UPDATE workers SET started_at = now() - interval '1 hour'"))


@asynccontextmanager
async def living(db: Database, *names: str) -> AsyncIterator[None]:
    """Lends a lease to those of the workers that have none; afterwards they are as they were."""
    find = text("SELECT id, lease_until, lease_until > now() AS lives FROM workers WHERE id = ANY(:names)")
    lend = text("UPDATE workers SET lease_until = coalesce(:until, now() + interval '1 hour') WHERE id = :id")
    async with db.autocommit() as connection:
        before = {row.id: row for row in await connection.execute(find, {"names": list(names)})}
        for row in before.values():
            if not row.lives:
                await connection.execute(lend, {"id": row.id, "until": None})
    for name in set(names) - set(before):
        await alive(db, name)
    yield
    for name in set(names) - set(before):
        await workers.unregister(db, name)
    for row in before.values():
        if not row.lives:
            await db.execute(lend, {"id": row.id, "until": row.lease_until})


async def claimed(db: Database, worker: str = WORKER, **request: Any) -> ResponseRow:
    """A response that `worker` has claimed."""
    row = await claim(db, await queued(db, **request), worker)
    assert row is not None
    return row


class Writer:
    """Writes a claimed response's events as a runner would."""

    def __init__(self, row: ResponseRow, worker: str = WORKER) -> None:
        self.row = row
        self.worker = worker
        self.stream = ResponseStream(row.as_object())
        self.stream.accept()

    def entry(
        self,
        events: list[dict[str, Any]],
        tokens: tuple[int, ...] = (),
        ending: Ending | None = None,
        prompt: tuple[int, int] = (0, 0),
    ) -> Entry:
        """`prompt`: how many tokens it has, and how many of them were cached."""
        first = events[0]["sequence_number"]
        encoded = frames.encode_all(events)
        last = first + len(events) - 1
        chunk = Chunk(self.row.id, first, last, self.row.attempt, tokens, encoded, ending is not None, (), *prompt)
        if ending is None:
            return Entry(self.worker, chunk)
        return Entry(self.worker, chunk, ending, self.row.conversation_input, self.row.request_to_keep)

    def begin(self, *prompt: int) -> Entry:
        return self.entry(self.stream.begin(), prompt=(*prompt, 0, 0)[:2])

    def say(self, text: str, *tokens: int) -> Entry:
        return self.entry(self.stream.feed(Text(text)), tokens)

    def finish(self) -> Entry:
        now = datetime.now(UTC)
        events = self.stream.finish(
            Finish(FinishReason.STOP, Usage(1, 0, 2), counted=self.row.request["task"] == COUNT), int(now.timestamp())
        )
        return self.entry(events, (), Ending.of(self.stream.response, now))


async def change(db: Database, response_id: str, **values: object) -> None:
    sets = ", ".join(f"{name} = :{name}" for name in values)
    await db.execute(text(f"UPDATE responses SET {sets} WHERE id = :id"), {**values, "id": response_id})


async def in_foreground(db: Database, words: str, **request: Any) -> str:
    """A foreground response that was sent to the foreground places."""
    response_id = await queued(db, input=[message(words)], **request)
    await change(db, response_id, priority=Priority.FOREGROUND.value, foreground_place=True)
    return response_id
