"""What waits in Postgres, what is sent to Redis, and how many more may be sent: parts of SQL statements.

A queued response without `sent_at` waits here. One with `sent_at` has a message in Redis, unless that was lost.

Each ORDER BY names the columns of an index. Without it Postgres may read the table from its first row: after a long
queue its statistics are out of date, and promise a matching row there.
"""

from __future__ import annotations

RESERVE = 8
"""Messages in Redis of a queue without a living worker: the first worker that comes finds something to claim."""


def waits(table: str) -> str:
    """The condition of a response that waits, as `responses_waiting_idx` has it."""
    return f"{table}.status = 'queued' AND {table}.sent_at IS NULL"


def some_wait(queue: str) -> str:
    """Whether any response of the queue waits."""
    order = "x.queue, x.project, x.priority, x.position"
    return (
        f"(SELECT true FROM responses x WHERE x.queue = {queue} AND {waits('x')} ORDER BY {order} LIMIT 1) IS NOT NULL"
    )


def slots(queue: str, most: str) -> str:
    """The slots of the queue's living workers, at most so many of each; RESERVE if there is no worker."""
    each = f"least(w.slots, {most})"
    living = f"w.queue = {queue} AND w.lease_until > now()"
    return f"(SELECT coalesce(sum({each}), {RESERVE}) FROM workers w WHERE {living})"


def room(queue: str, limit: str) -> str:
    """How many more responses may be sent until `limit` of the queue have a message and are queued; not urgent ones."""
    sent = f"s.queue = {queue} AND s.priority > 0 AND s.status = 'queued' AND s.sent_at IS NOT NULL"
    counted = f"(SELECT count(*) FROM (SELECT FROM responses s WHERE {sent} ORDER BY s.queue, s.priority LIMIT l.n) n)"
    return f"(SELECT l.n - {counted} FROM (SELECT {limit} AS n) l)"
