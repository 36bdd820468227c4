"""Many responses as the API leaves them in the queue, and what is true of those that were cancelled."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from app.ids import new_id
from app.protocol.events import frames
from app.protocol.status import Status
from app.store.database import Database
from app.store.operations import actions, cancels
from app.store.operations.actions import ActionKind, ActionRow, NewAction
from app.store.operations.cancels import BatchCount
from app.store.operations.filters import ResponseFilter
from app.store.responses import logs
from app.store.responses.new_rows import insert_waiting
from tests.support.rows import new_response

BATCH = 256


async def many_queued(db: Database, count: int, project: str = "default", **request: Any) -> list[str]:
    """So many responses that wait; returns their ids."""
    new = [new_response(None, project, **request) for _ in range(count)]
    async with db.begin() as connection:
        for first in range(0, count, BATCH):
            await insert_waiting(connection, new[first : first + BATCH])
    return [each.id for each in new]


async def started(db: Database, kind: ActionKind, only: ResponseFilter, matched: int = 0) -> ActionRow:
    """An action as the operators' API leaves it."""
    async with db.begin() as connection:
        is_cancel = kind is ActionKind.CANCEL
        of_batches = await cancels.cancel_batches(connection, only) if is_cancel else BatchCount()
        new = NewAction(new_id("action"), kind, only, "a test", None, matched, of_batches.batches)
        return await actions.add(connection, new)


async def action_of(db: Database, action_id: str) -> ActionRow:
    found = await actions.find(db, action_id)
    assert found is not None
    return found


async def statuses(db: Database) -> dict[str, int]:
    rows = await db.execute(text("SELECT status, count(*) AS number FROM responses GROUP BY status"))
    return {row.status: row.number for row in rows}


async def check_cancelled(db: Database, ids: list[str]) -> None:
    """Asserts that each was cancelled once: its row is whole, and its log ends with one terminal event."""
    rows = await db.execute(
        text(
            """
            SELECT r.*, (SELECT count(*) FROM chunks f WHERE f.response_id = r.id AND f.final) AS finals
            FROM responses r WHERE r.id = ANY(:ids)
            """
        ),
        {"ids": ids},
    )
    assert len(rows) == len(ids)
    for row in rows:
        assert (row.status, row.output, row.worker) == (Status.CANCELLED.value, [], None), row.id
        assert row.finals <= 1 and row.finished_at is not None
        *earlier, last = (await logs.read_page(db, row.id)).chunks
        assert last.final and not any(chunk.final for chunk in earlier)
        (event,) = frames.decode(last.frames)
        assert (event["type"], event["sequence_number"]) == (
            "response.failed",
            sum(c.last - c.first + 1 for c in earlier),
        )
        assert (event["response"]["id"], event["response"]["status"]) == (row.id, "cancelled")
