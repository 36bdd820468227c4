"""What the log of a response says."""

from __future__ import annotations

from typing import Any

from app.protocol.events import frames
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.database import Database
from app.store.responses import logs, lookup
from app.store.rows import ResponseRow
from tests.support import grammar


async def events_of(db: Database, response_id: str) -> list[dict[str, Any]]:
    reading = await logs.read(db, response_id)
    return [event for chunk in reading.chunks for event in frames.decode(chunk.frames)]


async def row_of(db: Database, response_id: str) -> ResponseRow:
    row = await lookup.find(db, response_id)
    assert row is not None
    return row


def text_of(row: ResponseRow) -> str:
    """All the text of a final row's output."""
    return "".join(part["text"] for item in row.output or () for part in item.get("content", ()))


def plain(row: ResponseRow) -> tuple[list[dict[str, Any]], Any]:
    """The items without ids, which differ between responses, and the usage."""
    ids = ("id", "call_id", "container_id")
    return [{name: value for name, value in item.items() if name not in ids} for item in row.output or ()], row.usage


async def whole(db: Database, response_id: str, status: Status = Status.COMPLETED) -> ResponseRow:
    """The row, after asserting that row and log agree, are final, and keep the grammar."""
    row, events = await row_of(db, response_id), await events_of(db, response_id)
    grammar.check(events)
    assert row.status is status
    shown = {"error": None} if status is Status.CANCELLED else {}  # Its event tells clients why it ended.
    assert events[-1]["response"] | shown == row.as_object()
    return row


def items(row: ResponseRow, *kinds: str) -> list[Json]:
    return [item for item in row.output or () if item["type"] in kinds or not kinds]


def types(row: ResponseRow) -> list[str]:
    return [item["type"] for item in items(row)]
