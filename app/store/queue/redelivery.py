"""Redelivery: what was sent and not claimed goes back, and what was released is sent again.

A worker claims what it is sent at once, so a message that has led to no claim after some seconds was lost, by Redis or
with its sender, or its worker does not take it. Its response waits again, and a dispatch sends it in its turn
(dispatch.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.queue.message import MESSAGE_COLUMNS, Message
from app.scheduling.decisions import TrialLoad, retried, tried
from app.scheduling.placement import Candidate
from app.store.database import Database
from app.store.guards import PUT_BACK
from app.store.layout import LAYOUT
from app.store.queue.facts import load_of, states

MAX_DOUBLINGS = 5
"""The wait before a redelivery doubles this many times at most."""

# A worker counts with a slot less for each message that it left lying, until its next heartbeat: one that never claims
# would look idle, and get everything. It keeps half of its slots each time, because it may only be slow. A foreground
# response may wait for a slot whose response yields, so it does not count. Whoever has a worker's row locked writes its
# slots anyway. A time that is still a minute to come is one from before the clock of Postgres went back.
_PUT_BACK = text(
    f"""
    WITH late AS MATERIALIZED (
        SELECT r.id, r.sent_to, r.foreground_place FROM responses r
        WHERE r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.worker IS NULL AND (
            r.sent_at < now() - make_interval(secs =>
                :seconds * power(2, least(greatest(r.sends - 1, 0), CAST(:max_doublings AS int))))
            OR r.sent_at > now() + interval '1 minute'
            OR NOT EXISTS (SELECT FROM open_workers w WHERE w.node = r.sent_to)
        ) ORDER BY r.sent_to LIMIT :limit FOR NO KEY UPDATE OF r SKIP LOCKED
    ), left_lying AS (
        SELECT w.id, l.count FROM workers w
        JOIN (SELECT sent_to, count(*) FROM late WHERE NOT foreground_place GROUP BY sent_to) l ON l.sent_to = w.node
        JOIN open_workers o ON o.id = w.id FOR NO KEY UPDATE OF w SKIP LOCKED
    ), counted AS (
        UPDATE workers w SET slots = greatest(w.slots - l.count, (w.slots + 1) / 2) FROM left_lying l WHERE w.id = l.id
    )
    UPDATE responses r SET {PUT_BACK}
    FROM late l WHERE r.id = l.id
    RETURNING r.id
    """
)

# What is not to be had at once, `put_back` finds.
_TAKE_BACK = text(
    f"""
    WITH unclaimed AS MATERIALIZED (
        SELECT r.id FROM responses r
        WHERE r.sent_to = :node AND r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.worker IS NULL
        FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE responses r SET {PUT_BACK}
    FROM unclaimed u WHERE r.id = u.id
    RETURNING r.id
    """
)

# Of each queue by itself: what waits for a model without workers keeps no other model's from going on.
_RELEASED = text(
    """
    SELECT r.*, p.sent_to AS before
    FROM (
        SELECT DISTINCT w.queue FROM open_workers w WHERE w.lease_until > now() AND w.layout >= :layout
    ) w
    CROSS JOIN LATERAL (
        SELECT r.id, r.queue, r.affinity, r.sent_to, r.previous_response_id, r.position FROM responses r
        WHERE r.queue = w.queue AND r.status = 'in_progress' AND r.worker IS NULL AND NOT r.yielded
            AND r.sent_at IS NULL AND (r.crashes > 0) = :suspects
        ORDER BY r.position LIMIT :limit
    ) r LEFT JOIN responses p ON p.id = r.previous_response_id
    ORDER BY r.position
    """
)
_TRIAL_LOADS = text(
    """
    SELECT l.*, h.trials, h.others, l.started_at > now() - interval '1 minute' AS just_started
    FROM worker_loads l CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE t.is_trial) AS trials, count(*) FILTER (WHERE NOT t.is_trial) AS others
        FROM (
            SELECT r.crashes > 0 AND (r.worker IS NULL OR r.attempt IS DISTINCT FROM (
                SELECT p.attempt FROM progress p WHERE p.response_id = r.id)) AS is_trial
            FROM responses r WHERE r.sent_to = l.node AND r.sent_at IS NOT NULL AND r.finished_at IS NULL
        ) t
    ) h WHERE l.queue = ANY(CAST(:queues AS text[])) AND l.layout >= :layout
    """
)
_SEND_AGAIN = text(
    f"""
    WITH chosen AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:nodes AS text[])) AS c(id, node)
    ), locked AS MATERIALIZED (
        SELECT r.id, r.status, r.yielded, r.worker, r.sent_at FROM chosen c JOIN responses r ON r.id = c.id
        FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE responses r SET sent_at = now(), sends = r.sends + 1, sent_to = c.node
    FROM locked l JOIN chosen c ON c.id = l.id
    WHERE r.id = l.id AND l.status = 'in_progress' AND l.worker IS NULL AND NOT l.yielded AND l.sent_at IS NULL
    RETURNING {", ".join(f"r.{name}" for name in MESSAGE_COLUMNS)}
    """
)
_QUEUES_OF_SUSPECTS = text(
    """
    SELECT DISTINCT r.queue FROM responses r
    WHERE r.status = 'in_progress' AND r.worker IS NULL AND NOT r.yielded AND r.sent_at IS NULL AND r.crashes > 0
    """
)


async def put_back(db: Database, seconds: float, limit: int = 500) -> Sequence[str]:
    """Makes responses wait again that were sent and not claimed; returns their ids.

    They were sent `seconds` ago, which doubles with every redelivery, or to a worker that is gone or takes none. In
    line they wait for a dispatch; released ones for `take_released`.
    """
    values = {"seconds": seconds, "max_doublings": MAX_DOUBLINGS, "limit": limit}
    return [row.id for row in await db.execute(_PUT_BACK, values)]


async def take_back(connection: AsyncConnection, node: str) -> int:
    """Makes all responses wait again that were sent to this worker and not claimed; returns how many."""
    return len((await connection.execute(_TAKE_BACK, {"node": node})).all())


async def take_released(db: Database, limit: int = 500) -> list[Message]:
    """Marks released responses as sent, each to a worker; returns their messages. All but suspects."""
    waiting = await _released(db, limit, suspects=False)
    if not waiting:
        return []
    async with db.autocommit() as connection:
        found = await states(connection, waiting)
    nodes = [retried(candidates, found[queue].loads) for queue, candidates in waiting.items()]
    return await _send_again(db, nodes)


async def queues_of_suspects(db: Database) -> set[str]:
    """The queues of suspects that were released and not sent again."""
    return {row.queue for row in await db.execute(_QUEUES_OF_SUSPECTS)}


async def take_suspects(db: Database, anywhere: Collection[str], limit: int = 500) -> list[Message]:
    """As `take_released`, for suspects, a few for each worker.

    `anywhere`: the queues of which workers with others' work get some, too.
    """
    waiting = await _released(db, limit, suspects=True)
    loads: dict[str, list[TrialLoad]] = {queue: [] for queue in waiting}
    for row in await db.execute(_TRIAL_LOADS, {"queues": list(waiting), "layout": LAYOUT}) if waiting else ():
        loads[row.queue].append(TrialLoad(load_of(row._asdict()), row.trials, row.others, row.just_started))
    return await _send_again(
        db, [tried(each, loads[queue], anywhere=queue in anywhere) for queue, each in waiting.items()]
    )


async def _released(db: Database, limit: int, *, suspects: bool) -> dict[str, list[Candidate]]:
    """Up to `limit` of each queue with workers that were released and not sent again, by queue, the oldest first."""
    found: dict[str, list[Candidate]] = {}
    for row in await db.execute(_RELEASED, {"limit": limit, "suspects": suspects, "layout": LAYOUT}):
        found.setdefault(row.queue, []).append(Candidate(row.id, (row.sent_to, row.before), row.affinity))
    return found


async def _send_again(db: Database, placed: Sequence[Mapping[str, str]]) -> list[Message]:
    nodes = {id_: node for each in placed for id_, node in each.items()}
    if not nodes:
        return []
    values = {"ids": list(nodes), "nodes": list(nodes.values())}
    return list(map(Message.of, await db.execute(_SEND_AGAIN, values)))
