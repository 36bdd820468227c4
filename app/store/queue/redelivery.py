"""Redelivery: what was sent and not claimed goes back, and what was released is sent again.

A worker claims what it is sent at once, so a message that has led to no claim after some seconds was lost, by Redis or
with its sender, or its worker does not take it. Its response waits again, and a dispatch sends it in its turn
(dispatch.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Integer, literal_column, text

from app.queue.message import MESSAGE_COLUMNS, Message, Priority
from app.store.database import Database
from app.store.guards import is_suspect
from app.store.queue.placement import PLACED, loads, places, preferred, ran
from app.store.tables import IS_SENT

MAX_DOUBLINGS = 5
"""The wait before a redelivery doubles this many times at most."""
CLOCK_WENT_BACK = "interval '1 minute'"
"""A time so far in the future is one from before the clock of Postgres went back."""

_MESSAGE = ", ".join(f"r.{name}" for name in MESSAGE_COLUMNS)
_IS_UNCLAIMED = f"{IS_SENT.format('r.')} AND r.worker IS NULL"
_IS_DUE = f"""
    (r.sent_at < now() - make_interval(secs => :seconds * power(2, least(greatest(r.sends - 1, 0), {MAX_DOUBLINGS})))
    OR r.sent_at > now() + {CLOCK_WENT_BACK})"""

# A worker counts with a slot less for each message that it left lying, until its next heartbeat: one that never claims
# would look idle, and get everything. It keeps half of its slots each time, because it may only be slow. A foreground
# response may wait for a slot whose response yields, so it does not count. Whoever has a worker's row locked writes its
# slots anyway.
_PUT_BACK = text(
    f"""
    WITH late AS MATERIALIZED (
        SELECT r.id, r.sent_to, r.foreground_place FROM responses r
        WHERE {_IS_UNCLAIMED} AND r.priority > {Priority.COUNT.value} AND (
            {_IS_DUE} OR NOT EXISTS (SELECT FROM workers w WHERE w.node = r.sent_to AND w.slots > 0)
        ) ORDER BY r.sent_to LIMIT :limit FOR NO KEY UPDATE OF r SKIP LOCKED
    ), left_lying AS (
        SELECT w.id, l.count FROM workers w
        JOIN (SELECT sent_to, count(*) FROM late WHERE NOT foreground_place GROUP BY sent_to) l ON l.sent_to = w.node
        FOR NO KEY UPDATE OF w SKIP LOCKED
    ), counted AS (
        UPDATE workers w SET slots = greatest(w.slots - l.count, (w.slots + 1) / 2) FROM left_lying l WHERE w.id = l.id
    )
    UPDATE responses r SET sent_at = NULL,
        foreground_place = l.foreground_place AND r.status = 'in_progress' AND NOT r.yielded
    FROM late l WHERE r.id = l.id
    RETURNING r.id
    """
)

_RESEND_COUNTS = text(
    f"""
    WITH late AS MATERIALIZED (
        SELECT r.id FROM responses r
        WHERE {_IS_UNCLAIMED} AND r.priority = {Priority.COUNT.value} AND {_IS_DUE}
        ORDER BY r.sent_to LIMIT :limit FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE responses r SET sent_at = now(), sends = r.sends + 1 FROM late l WHERE r.id = l.id
    RETURNING {_MESSAGE}
    """
)

_IS_SUSPECT = is_suspect(literal_column("r.crashes", Integer), literal_column("CAST(:max_crashes AS int)", Integer))
_SUSPECT = str(_IS_SUSPECT.compile(compile_kwargs={"literal_binds": True}))
_IS_RELEASED = "r.status = 'in_progress' AND r.worker IS NULL AND NOT r.yielded AND r.sent_at IS NULL"
# Released responses go at once, however much their workers have. Suspects of a queue are sent as many as it has living
# workers, and the next ones when these have ended: a worker runs them one at a time, and those that wait there would
# keep the places of others.
_TAKE_RELEASED = text(
    f"""
    WITH released AS MATERIALIZED (
        SELECT r.id, r.queue, {_SUSPECT} AS is_suspect,
            row_number() OVER (PARTITION BY r.queue, {_SUSPECT} ORDER BY r.position) AS nth
        FROM responses r WHERE {_IS_RELEASED} ORDER BY r.position LIMIT :limit
    ), loads AS MATERIALIZED ({loads("w.queue IN (SELECT queue FROM released)")}
    ), suspects AS MATERIALIZED (
        SELECT k.queue, count(*) - coalesce(sum(h.count), 0) AS room FROM loads k CROSS JOIN LATERAL (
            SELECT count(*) FROM responses r
            WHERE r.sent_to = k.node AND {IS_SENT.format("r.")} AND r.status = 'in_progress' AND {_SUSPECT}
        ) h GROUP BY k.queue
    ), locked AS MATERIALIZED (
        SELECT r.id, r.queue, r.priority, r.position, r.status, r.worker, r.yielded, r.sent_at, r.foreground_place,
            r.sent_to, r.previous_response_id, r.affinity
        FROM released n JOIN suspects s ON s.queue = n.queue JOIN responses r ON r.id = n.id
        WHERE NOT n.is_suspect OR n.nth <= s.room
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ), places AS MATERIALIZED ({places((False, "CAST(:limit AS int)"), (True, "CAST(:limit AS int)"))}
    ), lined AS MATERIALIZED (
        SELECT r.*, r.foreground_place AS has_place, row_number() OVER (ORDER BY r.position) AS number
        FROM locked r WHERE {_IS_RELEASED}
    ), rows AS MATERIALIZED (
        SELECT l.number, l.queue, l.has_place,
            {preferred("l", "l.sent_to", ran("l.previous_response_id"))} AS preferred
        FROM lined l
    ), {PLACED}
    UPDATE responses r SET sent_at = now(), sends = r.sends + 1, sent_to = p.node
    FROM lined l JOIN placed p ON p.number = l.number WHERE r.id = l.id
    RETURNING {_MESSAGE}
    """
)


async def put_back(db: Database, seconds: float, limit: int = 500) -> Sequence[str]:
    """Makes responses wait again that were sent and not claimed; returns their ids.

    They were sent `seconds` ago, which doubles with every redelivery, or to a worker that is gone or takes none. In
    line they wait for a dispatch; released ones for `take_released`. Counts never wait: see `resend_counts`.
    """
    return [row.id for row in await db.execute(_PUT_BACK, {"seconds": seconds, "limit": limit})]


async def resend_counts(db: Database, seconds: float, limit: int = 500) -> list[Message]:
    """Marks counts that were sent so long ago, and not claimed, as sent now; returns their messages."""
    return list(map(Message.of, await db.execute(_RESEND_COUNTS, {"seconds": seconds, "limit": limit})))


async def take_released(db: Database, max_crashes: int, limit: int = 500) -> list[Message]:
    """Marks released responses as sent, each to a worker; returns their messages. Suspects a few at a time."""
    return list(map(Message.of, await db.execute(_TAKE_RELEASED, {"max_crashes": max_crashes, "limit": limit})))
