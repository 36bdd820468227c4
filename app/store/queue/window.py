"""What waits in Postgres, what is sent to Redis, and how many more may be sent: parts of SQL statements.

A response in line is queued, or has yielded and waits for its turn again. Without `sent_at` it waits here. With one it
has a message in Redis, unless that was lost.

Each ORDER BY names the columns of an index. Without it Postgres may read the table from its first row: after a long
queue its statistics are out of date, and promise a matching row there.
"""

from __future__ import annotations

from app.queue.message import FOREGROUND
from app.store.tables import in_line

RESERVE = 8
"""Messages in Redis of a queue without a living worker: the first worker that comes finds something to claim."""
KEPT_PART = 16
"""One of so many slots of each worker with two or more, and one at least, is kept for foreground responses."""
MOST_PART = 2
"""Foreground responses push background out of one of so many slots at most, and of one at least."""


def waits(table: str) -> str:
    """The condition of a response that waits here, as `responses_waiting_idx` has it."""
    return f"{in_line(f'{table}.')} AND {table}.sent_at IS NULL"


def is_foreground(table: str) -> str:
    return f"{table}.priority IN ({', '.join(map(str, FOREGROUND))})"


def some_wait(queue: str) -> str:
    """Whether any response of the queue waits."""
    order = "x.queue, x.project, x.priority, x.position"
    return (
        f"(SELECT true FROM responses x WHERE x.queue = {queue} AND {waits('x')} ORDER BY {order} LIMIT 1) IS NOT NULL"
    )


def some_foreground_waits(queue: str) -> str:
    """Whether any foreground response of the queue waits."""
    waiting = f"y.queue = {queue} AND {waits('y')} AND {is_foreground('y')}"
    return f"(SELECT true FROM responses y WHERE {waiting} ORDER BY y.queue LIMIT 1) IS NOT NULL"


def kept_of(slots: int) -> int:
    """How many of a worker's slots are kept for foreground responses."""
    return 0 if slots < 2 else max(slots // KEPT_PART, 1)


def most_foreground_of(slots: int) -> int:
    """How many foreground responses a worker runs at most beside those in the order of all."""
    return max(slots // MOST_PART, 1)


def kept(slots: str) -> str:
    """`kept_of` in SQL."""
    return f"CASE WHEN {slots} < 2 THEN 0 ELSE greatest({slots} / {KEPT_PART}, 1) END"


def most_foreground(slots: str) -> str:
    """`most_foreground_of` in SQL."""
    return f"greatest({slots} / {MOST_PART}, 1)"


def places(queue: str, of_worker: str, without: int = 0) -> str:
    """The sum of an expression of `w.slots` over the queue's living workers; `without` one, so many."""
    living = f"w.queue = {queue} AND w.lease_until > now()"
    return f"(SELECT coalesce(sum({of_worker}), {without}) FROM workers w WHERE {living})"


def slots(queue: str, most: str) -> str:
    """The slots of the queue's living workers that are open to all, at most so many of each; RESERVE without one."""
    return places(queue, f"least(w.slots - {kept('w.slots')}, {most})", RESERVE)


def room(queue: str, limit: str, *, foreground: bool = False) -> str:
    """How many more responses may be sent until `limit` of the queue have a message and are in line.

    With `foreground`: how many more foreground responses, until so many have a place, or a message for one.
    """
    if foreground:
        taken, index = "s.foreground_place AND s.finished_at IS NULL", "s.queue"
    else:  # counts are apart
        taken = f"s.priority > 0 AND {in_line('s.')} AND s.sent_at IS NOT NULL AND NOT s.foreground_place"
        index = "s.queue, s.priority"
    those = f"SELECT FROM responses s WHERE s.queue = {queue} AND {taken} ORDER BY {index} LIMIT l.n"
    return f"(SELECT l.n - (SELECT count(*) FROM ({those}) n) FROM (SELECT {limit} AS n) l)"
