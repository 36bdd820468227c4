"""Redelivery: which responses were sent although Redis has no message for them.

The broker's lists are first in, first out, and the broker knows which message is next in each. So a long queue that
lost nothing is not sent twice. What was queued and lost waits again, and a dispatch sends it in its turn (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Boolean, Select, Text, case, cast, column, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql import ColumnElement, FromClause

from app.protocol.status import Status
from app.queue.message import MESSAGE_COLUMNS, Kind, Message, Priority
from app.store.database import Database
from app.store.guards import IS_IN_PROGRESS, is_suspect
from app.store.tables import in_line, responses, workers

MAX_DOUBLINGS = 5
"""The wait before a redelivery doubles this many times at most."""
CLOCK_WENT_BACK = timedelta(minutes=1)
"""A time so far in the future is one from before the clock of Postgres went back."""


@dataclass(frozen=True, slots=True)
class BrokerList:
    """One list of the broker, and its queue."""

    queue: str
    list: str


async def take_released(db: Database, max_crashes: int, limit: int = 500) -> list[Message]:
    """Marks released responses that were not sent since as sent now; returns their messages.

    Suspects of a queue are sent as many as it has living workers, and the next ones when these have ended. A worker
    runs them one at a time: those that wait there would keep the places of others.
    """
    is_unsent = _is_released() & responses.c.sent_at.is_(None)
    suspects = is_suspect(responses.c.crashes, max_crashes)
    unsent = (
        select(
            responses.c.id,
            responses.c.queue,
            suspects.label("is_suspect"),
            func.row_number()
            .over(partition_by=(responses.c.queue, suspects), order_by=responses.c.position)
            .label("n"),
        )
        .where(is_unsent)
        .cte("unsent")
    )
    sent = responses.alias("sent")
    is_of_queue = (sent.c.status == Status.IN_PROGRESS.value) & (sent.c.queue == unsent.c.queue)
    suspects_sent = select(func.count()).where(is_of_queue, is_suspect(sent.c.crashes, max_crashes))
    # Two counts, each with an index of its own: Postgres would read the whole table for both at once.
    owned = suspects_sent.where(sent.c.worker == workers.c.id, workers.c.queue == unsent.c.queue).scalar_subquery()
    on_their_way = suspects_sent.where(sent.c.worker.is_(None), sent.c.sent_at.is_not(None)).scalar_subquery()
    living = (
        select(func.count())
        .where(workers.c.queue == unsent.c.queue, workers.c.lease_until > func.now())
        .scalar_subquery()
    )
    may_be_sent = ~unsent.c.is_suspect | (unsent.c.n <= func.greatest(living, 1) - owned - on_their_way)
    released = (
        select(responses.c.id)
        .join(unsent, unsent.c.id == responses.c.id)
        .where(is_unsent, may_be_sent)
        .order_by(responses.c.position)
        .limit(limit)
        .with_for_update(skip_locked=True, of=responses)
    )
    return await _mark_sent(db, released)


async def lists_to_check(db: Database, seconds: float) -> Sequence[BrokerList]:
    """The lists that should hold messages sent more than `seconds` ago."""
    found = select(responses.c.queue, _LIST.label("list"))
    statement = found.where(_is_sent(), _is_due(seconds)).union(found.where(_is_released(), _is_due(seconds)))
    return [BrokerList(row.queue, row.list) for row in await db.execute(statement)]


async def put_back(
    db: Database, heads: Mapping[BrokerList, str | None], seconds: float, limit: int = 500
) -> Sequence[str]:
    """Makes responses in line wait again whose message has left its list without leading to a claim; returns their ids.

    `heads` and `seconds` are as in `take_undelivered`. Counts are left to that, because they never wait.
    """
    undelivered = _undelivered(heads, seconds, limit).where(_is_sent(), _IS_DISPATCHED)
    lost = undelivered.order_by(*_BY_QUEUE)
    statement = update(responses).where(responses.c.id.in_(lost.scalar_subquery())).values(**_WAITS)
    return [row.id for row in await db.execute(statement.returning(responses.c.id))]


async def put_all_back(db: Database, queue: str, limit: int = 500) -> int:
    """Makes responses of this queue wait again, whose messages are all lost; returns how many, `limit` at most.

    It leaves counts to `take_undelivered`, and those that a claim is just taking to that.
    """
    sent = select(responses.c.id).where(responses.c.queue == queue, _is_sent(), _IS_DISPATCHED)
    lost = sent.order_by(*_BY_QUEUE).limit(limit).with_for_update(skip_locked=True)
    statement = update(responses).where(responses.c.id.in_(lost.scalar_subquery())).values(**_WAITS)
    return len(await db.execute(statement.returning(responses.c.id)))


async def take_undelivered(
    db: Database, heads: Mapping[BrokerList, str | None], seconds: float, limit: int = 500
) -> list[Message]:
    """Marks counts and released responses whose message has left its list without leading to a claim as sent now.

    Returns their messages.

    `heads` has each list's next message (a response's id), or None if the list is empty. A message sent `seconds`
    before the head has left the list, because lists are first in, first out. If it was also sent `seconds` ago, a
    worker would have claimed the response by now. The wait doubles with every redelivery.
    """
    undelivered = _undelivered(heads, seconds, limit)
    counts = undelivered.where(_is_sent(), responses.c.priority == Priority.COUNT.value).order_by(*_BY_QUEUE)
    released = undelivered.where(_is_released()).order_by(responses.c.position)
    return [*(await _mark_sent(db, counts)), *(await _mark_sent(db, released))]


_WAITS = {"sent_at": None, "foreground_place": False}
_BY_QUEUE = (responses.c.queue, responses.c.priority)
"""The order of `responses_sent_idx`, so that Postgres reads no rows that wait, whatever its statistics say."""
_IS_DISPATCHED = responses.c.priority > Priority.COUNT.value
"""Counts never wait."""
_LIST = case(
    (responses.c.priority == Priority.COUNT.value, responses.c.queue.concat(literal_column(f"'{Kind.COUNTS}'"))),
    (responses.c.foreground_place, responses.c.queue.concat(literal_column(f"'{Kind.FOREGROUND}'"))),
    else_=responses.c.queue,
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
            cast([each.list for each in heads], ARRAY(Text)),
            cast(list(heads.values()), ARRAY(Text)),
        )
        .table_valued(column("queue", Text), column("list", Text), column("head_id", Text), name="lists")
        .render_derived()
    )


def _is_sent() -> ColumnElement[bool]:
    return literal_column(in_line("responses."), Boolean) & responses.c.sent_at.is_not(None)


def _is_released() -> ColumnElement[bool]:
    return IS_IN_PROGRESS & responses.c.worker.is_(None) & ~responses.c.yielded


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
        .values(sent_at=func.now(), sends=responses.c.sends + 1)
        .returning(*(responses.c[name] for name in MESSAGE_COLUMNS))
    )
    return list(map(Message.of, await db.execute(statement)))
