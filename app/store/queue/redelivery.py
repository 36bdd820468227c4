"""Redelivery: which responses were sent although Redis has no message for them.

The broker's lists are first in, first out, and the broker knows which message is next in each. So a long queue that
lost nothing is not sent twice. What was queued and lost waits again, and a dispatch sends it in its turn (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Integer, Row, Select, Text, case, cast, column, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import ColumnElement, FromClause

from app.queue.message import Message, Priority, list_of
from app.store.database import Database
from app.store.guards import may, sent_now
from app.store.tables import responses

MAX_DOUBLINGS = 5
"""The wait before a redelivery doubles this many times at most."""
CLOCK_WENT_BACK = timedelta(minutes=1)
"""A time so far in the future is one from before the clock of Postgres went back."""

_MESSAGE = ("id", "model", "queue", "priority", "project", "stream", "attempt")


@dataclass(frozen=True, slots=True)
class BrokerList:
    """One list of the broker: a queue, and one of its LISTS."""

    queue: str
    list: int


async def take_released(db: Database, limit: int = 500) -> list[Message]:
    """Marks released responses that were not sent since as sent now; returns their messages."""
    released = (
        select(responses.c.id)
        .where(may("take_over"), responses.c.worker.is_(None), responses.c.sent_at.is_(None))
        .order_by(responses.c.position)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return await _mark_sent(db, released)


async def lists_to_check(db: Database, seconds: float) -> Sequence[BrokerList]:
    """The lists that should hold messages sent more than `seconds` ago."""
    found = select(responses.c.queue, _LIST.label("list"))
    statement = found.where(_is_sent(), _is_due(seconds)).union(found.where(_is_released(), _is_due(seconds)))
    async with db.autocommit() as connection:
        return [BrokerList(row.queue, row.list) for row in await connection.execute(statement)]


async def put_back(
    db: Database, heads: Mapping[BrokerList, str | None], seconds: float, limit: int = 500
) -> Sequence[str]:
    """Makes queued responses wait again whose message has left its list without leading to a claim; returns their ids.

    `heads` and `seconds` are as in `take_undelivered`. Urgent ones are left to that, because they never wait.
    """
    undelivered = _undelivered(heads, seconds, limit).where(_is_sent(), _IS_DISPATCHED)
    lost = undelivered.order_by(*_BY_QUEUE)
    statement = update(responses).where(responses.c.id.in_(lost.scalar_subquery())).values(sent_at=None)
    async with db.autocommit() as connection:
        return list((await connection.execute(statement.returning(responses.c.id))).scalars())


async def put_all_back(db: Database, queue: str, limit: int = 500) -> int:
    """Makes responses of this queue wait again, whose messages are all lost; returns how many, `limit` at most.

    It leaves urgent ones to `take_undelivered`, and those that a claim is just taking to that.
    """
    sent = select(responses.c.id).where(responses.c.queue == queue, _is_sent(), _IS_DISPATCHED)
    lost = sent.order_by(*_BY_QUEUE).limit(limit).with_for_update(skip_locked=True)
    statement = update(responses).where(responses.c.id.in_(lost.scalar_subquery())).values(sent_at=None)
    async with db.autocommit() as connection:
        return len((await connection.execute(statement.returning(responses.c.id))).all())


async def take_undelivered(
    db: Database, heads: Mapping[BrokerList, str | None], seconds: float, limit: int = 500
) -> list[Message]:
    """Marks released and urgent responses whose message has left its list without leading to a claim as sent now.

    Returns their messages.

    `heads` has each list's next message (a response's id), or None if the list is empty. A message sent `seconds`
    before the head has left the list, because lists are first in, first out. If it was also sent `seconds` ago, a
    worker would have claimed the response by now. The wait doubles with every redelivery.
    """
    undelivered = _undelivered(heads, seconds, limit)
    urgent = undelivered.where(_is_sent(), responses.c.priority == Priority.URGENT.value).order_by(*_BY_QUEUE)
    released = undelivered.where(_is_released()).order_by(responses.c.position)
    return [*(await _mark_sent(db, urgent)), *(await _mark_sent(db, released))]


_BY_QUEUE = (responses.c.queue, responses.c.priority)
"""The order of `responses_sent_idx`, so that Postgres reads no rows that wait, whatever its statistics say."""
_IS_DISPATCHED = responses.c.priority > Priority.URGENT.value
"""Urgent ones never wait."""
_LIST = case(
    (responses.c.priority == Priority.URGENT.value, literal_column(str(list_of(Priority.URGENT)))),
    else_=literal_column(str(list_of(max(Priority)))),
)
"""`message.list_of` of a row."""


def _undelivered(heads: Mapping[BrokerList, str | None], seconds: float, limit: int) -> Select[Any]:
    head = responses.alias("head")
    lists = _table_of(heads)
    has_left = lists.c.head_id.is_(None) | (_sent_at(responses) < _sent_at(head) - timedelta(seconds=seconds))
    return (
        select(responses.c.id)
        .select_from(responses)
        .join(lists, (lists.c.queue == responses.c.queue) & (lists.c.list == _LIST))
        .outerjoin(head, head.c.id == lists.c.head_id)
        .where(_is_due(seconds), has_left)
        .limit(limit)
        .with_for_update(skip_locked=True, of=responses)
    )


def _table_of(heads: Mapping[BrokerList, str | None]) -> Any:
    return (
        func.unnest(
            cast([each.queue for each in heads], ARRAY(Text)),
            cast([each.list for each in heads], ARRAY(Integer)),
            cast(list(heads.values()), ARRAY(Text)),
        )
        .table_valued(column("queue", Text), column("list", Integer), column("head_id", Text), name="lists")
        .render_derived()
    )


def _is_sent() -> ColumnElement[bool]:
    return may("claim") & responses.c.sent_at.is_not(None)


def _is_released() -> ColumnElement[bool]:
    return may("take_over") & responses.c.worker.is_(None)


def _sent_at(table: FromClause) -> ColumnElement[datetime]:
    # A released response has no time until its message was sent again.
    return func.coalesce(table.c.sent_at, table.c.started_at)


def _is_due(seconds: float) -> ColumnElement[bool]:
    doublings = func.least(func.greatest(responses.c.sends - 1, 0), MAX_DOUBLINGS)
    wait = func.power(2, doublings) * timedelta(seconds=seconds)
    return (_sent_at(responses) < func.now() - wait) | (_sent_at(responses) > func.now() + CLOCK_WENT_BACK)


async def _mark_sent(db: Database, chosen: Select[Any]) -> list[Message]:
    statement = (
        update(responses)
        .where(responses.c.id.in_(chosen.scalar_subquery()))
        .values(**sent_now())
        .returning(*(responses.c[name] for name in _MESSAGE))
    )
    async with db.autocommit() as connection:
        return [_message(row) for row in await connection.execute(statement)]


def _message(row: Row[Any]) -> Message:
    return Message(row.id, row.model, row.queue, row.priority, row.project, row.stream, row.attempt + 1)
