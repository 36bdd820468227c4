"""What scenarios of one fault share: requests whose answers are known, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import httpx
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import StoreUnavailable
from app.store.responses import lookup
from app.store.rows import ResponseRow
from tests.faults import audit
from tests.faults.clients import text_of
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.plan import MODEL
from tests.faults.polling import with_pause
from tests.faults.questions import counting
from tests.support.waiting import until

SECONDS = 90.0


async def background(fleet: Fleet, numbers: int, count: int = 1) -> list[str]:
    """Ids of responses that count so far."""
    body = {"model": MODEL, "input": f"/count {numbers}", "background": True}

    async def accepted() -> str | None:
        answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body)
        return answer.json()["id"] if answer.status_code == httpx.codes.OK else None

    ids = [await until(with_pause(accepted), SECONDS, "the POST is accepted") for _ in range(count)]
    return [each for each in ids if each is not None]


async def at_work(fleet: Fleet, numbers: int, count: int) -> list[str]:
    """The same, once each has its first token."""
    ids = await background(fleet, numbers, count)

    async def all_stream() -> bool:
        return {name for each in (await fleet.owned()).values() for name in each} >= set(ids)

    await until(with_pause(all_stream), SECONDS, "all stream")
    return ids


async def rows_of(fleet: Fleet, ids: Sequence[str]) -> list[ResponseRow]:
    return [row for name in ids if (row := await lookup.find(fleet.db, name)) is not None]


async def ended(fleet: Fleet, ids: Sequence[str]) -> list[ResponseRow]:
    """The rows of these responses, once all are final. No law was broken on their way."""

    async def final() -> list[ResponseRow]:
        with suppress(StoreUnavailable):
            rows = await rows_of(fleet, ids)
            return rows if all(row.status.final for row in rows) else []
        return []

    rows = await until(with_pause(final), SECONDS, "all are final")
    steps = await audit.transitions(fleet.db, ids)
    assert [finding for each in steps.values() for finding in audit.violations(each)] == []
    writes = await audit.writes(fleet.db, ids)
    assert [write.violation for each in writes.values() for write in each if write.violation is not None] == []
    return rows


async def completed(fleet: Fleet, ids: Sequence[str], numbers: int) -> list[ResponseRow]:
    """The same; each has counted so far, and no death of a worker counts as its crash."""
    rows = await ended(fleet, ids)
    assert [(row.status, row.crashes) for row in rows] == [(Status.COMPLETED, 0)] * len(ids), rows
    assert {output_text(row) for row in rows} == {counting(numbers).answer}
    return rows


def output_text(row: ResponseRow) -> str:
    return text_of({"output": row.output or []})


async def busiest(fleet: Fleet) -> Member:
    member, _ = await until(with_pause(fleet.busiest), SECONDS, "a worker is at work")
    return member


async def one(fleet: Fleet, statement: str, **values: Any) -> Any:
    """The only value of the first row; None: there is none."""
    rows = await fleet.db.execute(text(statement), values)
    return rows[0][0] if rows else None


def worker_with(fleet: Fleet, pid: int | None) -> Member | None:
    return next((member for member in fleet.of(Role.WORKER) if member.pid == pid), None)
