"""Large rows, idempotency, projects and deadlines on a real Postgres."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from app.responses.read.reader import ResponseReader
from app.sizes import LARGE_BYTES
from app.store import database
from app.store.database import Database
from app.store.responses import logs, lookup
from app.store.responses.inserts import Inserter
from app.store.rows import Idempotency, LargeRow, ResponseRow
from config.settings import Settings
from tests.integration.store.common import answered, begun, scalar
from tests.support.logs import row_of, text_of
from tests.support.requests import message
from tests.support.rows import new_response, queued
from tests.support.waiting import until

LARGE = "x" * 2 * LARGE_BYTES


async def test_a_large_request_and_a_large_output_come_back_as_they_were(db: Database) -> None:
    new = new_response(Idempotency("key", b"1"), input=[message(LARGE)])
    await Inserter(db).create(new)
    assert (await row_of(db, new.id)).request == new.request
    said = (await answered(db, LARGE)).row
    found = await row_of(db, said.id)
    assert (text_of(found), found.request) == (LARGE, said.request)


async def test_what_has_ended_is_read_together_as_far_as_it_is_small_together(db: Database) -> None:
    large, *halves = [
        (await answered(db, "answer", input=[message(each)])).row.id
        for each in (LARGE, *("x" * (LARGE_BYTES // 2) for _ in range(3)))
    ]
    waits = await queued(db)
    found = await lookup.find_ended(db, [waits, "resp_missing", large, *halves])
    assert found[:3] == [None, LargeRow("resp_missing"), LargeRow(large)]
    together = [each for each in found[3:] if isinstance(each, ResponseRow)]
    assert together == [await lookup.find(db, min(halves))]
    assert [each.id for each in found[3:] if each is not None] == halves


async def test_the_flags_of_a_large_row_are_read_without_it(db: Database) -> None:
    include = ["reasoning.encrypted_content", "code_interpreter_call.outputs"]
    large = new_response(Idempotency("key", b"x" * 32), input=[message(LARGE)], include=include)
    await Inserter(db).create(large)
    all_taken = [db.large_reads.take("another") for _ in range(database.LARGE_READS)]
    found = [await lookup.get_flags(db, "default", large.id), await lookup.get_by_key(db, "default", "key")]
    assert found[0] is not None and found[1] is not None
    assert found[0].id == found[1].id == large.id
    assert (found[0].fingerprint, found[0].include) == (b"x" * 32, include)
    assert db.large_reads.held == len(all_taken)
    assert await lookup.get_flags(db, "theirs", large.id) is await lookup.get_by_key(db, "theirs", "key") is None


async def test_large_rows_leave_connections_for_the_others(db: Database) -> None:
    large, small = await queued(db, input=[message(LARGE)]), await queued(db)
    with contextlib.ExitStack() as stack:
        for _ in range(database.LARGE_READS):
            stack.enter_context(db.large_reads.take("another"))
        readers = [asyncio.create_task(lookup.find(db, large)) for _ in range(30)]
        for _ in range(3):
            assert await lookup.find(db, small) is not None
        assert not any(reader.done() for reader in readers)
    assert all(await asyncio.gather(*readers))


async def test_the_large_row_of_a_project_waits_for_one_of_another_projects_many(db: Database) -> None:
    many, one = await queued(db, input=[message(LARGE)]), await queued(db, project="blue", input=[message(LARGE)])
    ended: list[str] = []

    async def hold(size: int) -> None: ...

    async def read(project: str, response_id: str) -> None:
        assert await lookup.show(db, project, response_id, lambda row: row, hold) is not None
        ended.append(project)

    def waiting(project: str) -> int:
        return len(db.large_reads._lines.get(project, ()))

    first, *others = [db.large_reads.take("another") for _ in range(database.LARGE_READS)]
    reading = [asyncio.create_task(read("default", many)) for _ in range(10)]
    await until(lambda: waiting("default") == 10)
    reading.append(asyncio.create_task(read("blue", one)))
    await until(lambda: waiting("blue") == 1)
    first.release()  # One place is free, so they end in the order of their turns.
    await asyncio.gather(*reading)
    assert ended[:2] == ["default", "blue"]
    assert db.large_reads.held == len(others)


async def test_a_large_output_so_far_waits_for_room_before_its_log_is_read(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (await begun(db, LARGE, LARGE, LARGE)).row
    held: list[int] = []

    async def hold(size: int) -> None:
        monkeypatch.undo()
        held.append(size)

    async def too_early(*_: object) -> None:
        raise AssertionError("the log was read before there was room")

    monkeypatch.setattr(logs, "read", too_early)
    reader = ResponseReader(db, cast(Any, None), Settings())
    shown = await reader.get(row.project, row.id, (), hold)
    assert not shown.final
    assert 3 * len(LARGE) < held[0] < 4 * len(LARGE)
    await reader.close()


async def test_an_idempotency_key_belongs_to_its_project_and_to_the_first_response_of_two_processes(
    db: Database,
) -> None:
    made = [new_response(Idempotency("key", b"1")) for _ in range(2)]
    created = await asyncio.gather(*(Inserter(db).create(new) for new in made))
    (repeated,) = [row for row in created if row is not None]
    first = next(new for new, row in zip(made, created, strict=True) if row is None)
    assert (repeated.id, repeated.fingerprint) == (first.id, b"1")
    assert await lookup.find(db, next(new.id for new in made if new is not first)) is None
    assert await Inserter(db).create(new_response(Idempotency("key", b"1"), "another")) is None


async def test_the_queue_deadline_goes_by_the_clock_of_postgres(db: Database) -> None:
    wrong = datetime(2020, 1, 1, tzinfo=UTC)
    await Inserter(db).create(replace(new_response(), created_at=wrong, queue_seconds=600.0))
    assert 590 < await scalar(db, "SELECT extract(epoch FROM queue_deadline - now()) FROM responses") <= 600
