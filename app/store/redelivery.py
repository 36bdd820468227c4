"""Redelivery: which responses wait for a worker although Redis has no message for them.

The broker's lists are first in, first out, and the broker knows which message is next in each. So a long queue that
lost nothing is not sent twice.
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
from app.store.guards import may, sent_now
from app.store.tables import responses

MAX_DOUBLINGS = 5
"""The wait before a redelivery doubles this many times at most."""
CLOCK_WENT_BACK = timedelta(minutes=1)
"""More than the clocks of hosts differ: times of creation are those of API processes."""


@dataclass(frozen=True, slots=True)
class BrokerList:
    """One list of the broker: a queue and a priority."""

    queue: str
    priority: int


async def take_released(db: Database, limit: int = 500) -> list[Message]:
    """Marks released responses that were not sent since as sent now; returns their messages."""
    released = (
        select(responses.c.id)
        .where(may("take_over"), responses.c.worker.is_(None), responses.c.sent_at.is_(None))
        .order_by(responses.c.created_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return await _mark_sent(db, released)


async def lists_to_check(db: Database, seconds: float) -> Sequence[BrokerList]:
    """The lists that should hold messages sent more than `seconds` ago."""
    statement = select(responses.c.queue, responses.c.priority).where(_is_waiting(), _is_due(seconds)).distinct()
    async with db.autocommit() as connection:
        return [BrokerList(row.queue, row.priority) for row in await connection.execute(statement)]


async def take_undelivered(
    db: Database, heads: Mapping[BrokerList, str | None], seconds: float, limit: int = 500
) -> list[Message]:
    """Marks responses whose message has left its list without leading to a claim as sent now; returns their messages.

    `heads` has each list's next message (a response's id), or None if the list is empty. A message sent `seconds`
    before the head has left the list, because lists are first in, first out. If it was also sent `seconds` ago, a
    worker would have claimed the response by now. The wait doubles with every redelivery.
    """
    head = responses.alias("head")
    lists = _table_of(heads)
    has_left = lists.c.head_id.is_(None) | (_sent_at(responses) < _sent_at(head) - timedelta(seconds=seconds))
    undelivered = (
        select(responses.c.id)
        .join(lists, (lists.c.queue == responses.c.queue) & (lists.c.priority == responses.c.priority))
        .outerjoin(head, head.c.id == lists.c.head_id)
        .where(_is_waiting(), _is_due(seconds), has_left)
        .order_by(responses.c.created_at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=responses)
    )
    return await _mark_sent(db, undelivered)


def _table_of(heads: Mapping[BrokerList, str | None]) -> Any:
    return (
        func.unnest(
            cast([each.queue for each in heads], ARRAY(Text)),
            cast([each.priority for each in heads], ARRAY(Integer)),
            cast(list(heads.values()), ARRAY(Text)),
        )
        .table_valued(column("queue", Text), column("priority", Integer), column("head_id", Text), name="lists")
        .render_derived()
    )


def _is_waiting() -> ColumnElement[bool]:
    return may("claim") | (may("take_over") & responses.c.worker.is_(None))


def _sent_at(table: FromClause) -> ColumnElement[datetime]:
    # A released response has no time until its message was sent again.
    return func.coalesce(table.c.sent_at, table.c.created_at)


def _is_due(seconds: float) -> ColumnElement[bool]:
    doublings = func.least(func.greatest(responses.c.sends - 1, 0), MAX_DOUBLINGS)
    wait = func.power(2, doublings) * timedelta(seconds=seconds)
    # A time that is still to come is one from before the clock of Postgres went back.
    return (_sent_at(responses) < func.now() - wait) | (_sent_at(responses) > func.now() + CLOCK_WENT_BACK)


async def _mark_sent(db: Database, chosen: Select[Any]) -> list[Message]:
    statement = (
        update(responses)
        .where(responses.c.id.in_(chosen.scalar_subquery()))
        .values(**sent_now())
        .returning(responses.c.id, responses.c.model, responses.c.queue, responses.c.priority)
    )
    async with db.autocommit() as connection:
        return [_message(row) for row in await connection.execute(statement)]


def _message(row: Row[Any]) -> Message:
    return Message(row.id, row.model, row.queue, row.priority)
