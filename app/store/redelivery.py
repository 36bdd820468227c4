"""Messages that were lost, or never sent: which responses wait for a worker that nobody will tell.

Lists in Redis are first in, first out, and the broker can say which message is next. So a long honest queue
loses nothing and multiplies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Integer, Row, Select, Text, cast, column, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import ColumnElement, FromClause

from app.queue.message import Message
from app.store.database import Database
from app.store.guards import may, sent
from app.store.tables import responses


@dataclass(frozen=True, slots=True)
class WaitingList:
    """One list of the broker: a queue and a priority."""

    queue: str
    priority: int


async def take_released(db: Database, limit: int = 500) -> list[Message]:
    """Responses that their worker gave up, or was taken from, and that nobody was told of; marked as sent now."""
    released = (
        select(responses.c.id)
        .where(may("take_over"), responses.c.worker.is_(None), responses.c.sent_at.is_(None))
        .order_by(responses.c.created_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return await _taken(db, released)


async def waiting_lists(db: Database, seconds: float) -> Sequence[WaitingList]:
    """Where messages that are older than `seconds` ought to wait, if they were not lost."""
    statement = select(responses.c.queue, responses.c.priority).where(_waits(), _sent_before(seconds)).distinct()
    async with db.autocommit() as connection:
        return [WaitingList(row.queue, row.priority) for row in await connection.execute(statement)]


async def take_lost(
    db: Database, heads: Mapping[WaitingList, str | None], seconds: float, limit: int = 500
) -> list[Message]:
    """Responses whose message is neither in its list nor has led to a claim; marked as sent now.

    `heads`: each list's next message (a response's id), None where the list is empty. Lists are first in, first
    out, so a message that was sent `seconds` before the head was is out of it. A message that is out, and was
    sent `seconds` ago, would have been claimed by now; each time it was sent in vain it gets twice as long.
    """
    head = responses.alias("head")
    lists = (
        func.unnest(
            cast([waiting.queue for waiting in heads], ARRAY(Text)),
            cast([waiting.priority for waiting in heads], ARRAY(Integer)),
            cast(list(heads.values()), ARRAY(Text)),
        )
        .table_valued(column("queue", Text), column("priority", Integer), column("head_id", Text), name="lists")
        .render_derived()
    )
    out_of_it = lists.c.head_id.is_(None) | (_sent_at(responses) < _sent_at(head) - timedelta(seconds=seconds))
    lost = (
        select(responses.c.id)
        .join(lists, (lists.c.queue == responses.c.queue) & (lists.c.priority == responses.c.priority))
        .outerjoin(head, head.c.id == lists.c.head_id)
        .where(_waits(), _sent_before(seconds), out_of_it)
        .order_by(responses.c.created_at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=responses)
    )
    return await _taken(db, lost)


def _waits() -> ColumnElement[bool]:
    return may("claim") | (may("take_over") & responses.c.worker.is_(None))


def _sent_at(table: FromClause) -> ColumnElement[datetime]:
    # What its worker gave up has none, until its message was sent again.
    return func.coalesce(table.c.sent_at, table.c.created_at)


def _sent_before(seconds: float) -> ColumnElement[bool]:
    patience = func.power(2, func.least(func.greatest(responses.c.sends - 1, 0), 5)) * timedelta(seconds=seconds)
    return _sent_at(responses) < func.now() - patience


async def _taken(db: Database, chosen: Select[Any]) -> list[Message]:
    statement = (
        update(responses)
        .where(responses.c.id.in_(chosen.scalar_subquery()))
        .values(**sent())
        .returning(responses.c.id, responses.c.model, responses.c.queue, responses.c.priority)
    )
    async with db.autocommit() as connection:
        return [_message(row) for row in await connection.execute(statement)]


def _message(row: Row[Any]) -> Message:
    return Message(row.id, row.model, row.queue, row.priority)
