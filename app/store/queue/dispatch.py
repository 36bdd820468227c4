"""Dispatch: sends the next responses that wait in Postgres, each to a worker.

`app/scheduling` decides; this reads and writes for it (docs/internals/decisions/fair-queue.md).

A flow is found by what waits of it, so inserts and cancels take no lock and leave nothing behind. The row in `queues`
is the lock: dispatches of one queue happen one after the other. Their commits do not wait for the disk: after a crash
of Postgres the same responses are sent again, and the claim drops the duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.queue.message import MESSAGE_COLUMNS, Message, Priority
from app.scheduling.decisions import Room, RunningFlow, Sent, dispatched
from app.scheduling.loads import NOTHING_AHEAD, Ahead, Load
from app.scheduling.order import WaitingFlow
from app.scheduling.windows import MARGIN
from app.store.columns import Column, Columns, named_arrays, names
from app.store.database import Database
from app.store.guards import IS_FOREGROUND
from app.store.layout import LAYOUT
from app.store.queue.facts import flow_of, load_of, states, waiting_flow

SCALE_RESPONSES = 32.0
"""A flow's scale follows about so many of its latest responses."""
MIN_SCALE, MAX_SCALE = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class QueueFlow:
    """A flow and its queue."""

    queue: str
    project: str
    priority: int


@dataclass(frozen=True, slots=True)
class FlowCorrection:
    """Responses of a flow that have ended: how many, and in tokens what they were expected to take, what the flow was
    charged, and what they took."""

    count: int
    cost: int
    charged: int
    used: int
    seconds: float = 0.0
    """How long they ran."""

    def __add__(self, other: FlowCorrection) -> FlowCorrection:
        sums = (self.count + other.count, self.cost + other.cost, self.charged + other.charged)
        return FlowCorrection(*sums, self.used + other.used, self.seconds + other.seconds)


_FLOW: Columns[QueueFlow] = Columns(Column("project", "text"), Column("priority", "int"))
_CORRECTION: Columns[FlowCorrection] = Columns(
    *(Column(name, "int8") for name in ("count", "cost", "charged", "used")), Column("seconds", "float8")
)
_SENT: Columns[Sent] = Columns(
    Column("id", "text", of="tagged.candidate.id"),
    Column("node", "text"),
    Column("foreground_place", "bool"),
    Column("charge", "int", of="tagged.charge"),
    Column("start", "float8", of="tagged.start"),
    Column("finish", "float8", of="tagged.finish"),
    Column("step", "float8", of="tagged.step"),
)

# Every query of `_FACTS` takes a step in an index that its ORDER BY and LIMIT name, whatever Postgres believes of the
# tables: with 150,000 rows, and old statistics or none, it read as many pages as with all other kinds of plans
# forbidden. To compile it (jit) takes longer than to run it.
_LOCK = text(
    """
    INSERT INTO queues (name, virtual_time) VALUES (:queue, 0)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING virtual_time, set_config('jit', 'off', true), set_config('synchronous_commit', 'off', true)
    """
)

# `busy` steps from flow to flow over the index. LIMIT makes Postgres look each flow up: it would compare all with all,
# because its statistics know few flows. Of work in windows, what has a rank up to `late` cannot be in
# time.
#
# Of the flows whose next response may be among the first `most`, the first one offers so many responses, and each of
# the others one less: those before it come before it. A flow of work in windows offers as many rows that can be in
# time, which come first, and as many that cannot; each kind by rank and position.
_FACTS = text(
    f"""
    WITH RECURSIVE busy AS (
        (SELECT r.project, r.priority, r.position FROM waiting_responses r WHERE r.queue = :queue
        ORDER BY r.project, r.priority, r.rank, r.position LIMIT 1)
        UNION ALL
        SELECT n.project, n.priority, n.position FROM busy b CROSS JOIN LATERAL (
            SELECT r.project, r.priority, r.position FROM waiting_responses r
            WHERE r.queue = :queue AND (r.project, r.priority) > (b.project, b.priority)
            ORDER BY r.project, r.priority, r.rank, r.position LIMIT 1
        ) n
    ), flows_of AS MATERIALIZED (
        SELECT b.*, array_agg(b.priority) OVER (PARTITION BY b.project) AS beside, f.tag, f.scale,
            coalesce(max(f.part) OVER (PARTITION BY b.project), 0) AS part, l.seconds AS lead_seconds,
            CASE WHEN b.priority = {Priority.WINDOW:d}
                THEN CAST(1000000 * (extract(epoch FROM now()) + l.seconds) AS bigint) ELSE 0 END AS late,
            (SELECT p.weight FROM projects p WHERE p.id = b.project) AS weight
        FROM busy b LEFT JOIN LATERAL (
            SELECT * FROM flows f WHERE f.queue = :queue AND f.project = b.project AND f.priority = b.priority LIMIT 1
        ) f ON true CROSS JOIN LATERAL (
            SELECT CAST(:margin AS float8) * coalesce(f.run_seconds, 0) AS seconds
        ) l
        WHERE b.project NOT IN (SELECT u.project FROM pauses u WHERE u.queue = :queue)
    ), first AS MATERIALIZED (
        SELECT n.*, c.most
        FROM (VALUES (true, CAST(:foreground_most AS int)), (false, CAST(:most AS int))) AS c(foreground, most)
        CROSS JOIN LATERAL (
            SELECT *, row_number() OVER (ORDER BY is_last, start, was_idle DESC, position) AS place FROM (
                SELECT *, greatest(tag, :virtual_time) AS start, coalesce(tag < :virtual_time, true) AS was_idle,
                    priority = {Priority.WINDOW:d} AND part = 0 AS is_last
                FROM flows_of WHERE ({IS_FOREGROUND.format("")}) = c.foreground
            ) f ORDER BY place LIMIT c.most
        ) n
    ), loads AS (
        SELECT l.* FROM worker_loads l WHERE l.queue = :queue AND l.layout >= :layout
    ), running AS (
        SELECT r.project, r.priority, count(*), (SELECT p.weight FROM projects p WHERE p.id = r.project) AS weight
        FROM loads l JOIN responses r ON r.sent_to = l.node AND r.sent_at IS NOT NULL AND r.finished_at IS NULL
        WHERE CAST(:foreground AS boolean) AND (r.worker IS NOT NULL OR r.foreground_place)
        GROUP BY r.project, r.priority
    ), waiting AS (
        SELECT f.project, f.priority, f.beside, f.tag, f.scale, f.weight, f.part, f.lead_seconds, (
            SELECT json_agg(json_build_array(r.position, r.cost, r.charged IS NOT NULL, r.rank,
                extract(epoch FROM r.due_at - now()), r.id, r.sent_to,
                (SELECT p.sent_to FROM responses p WHERE p.id = r.previous_response_id), r.affinity)) FROM (
                    (SELECT * FROM waiting_responses r
                    WHERE r.queue = :queue AND r.project = f.project AND r.priority = f.priority AND r.rank > f.late
                    ORDER BY r.rank, r.position LIMIT f.most - f.place + 1)
                    UNION ALL
                    (SELECT * FROM waiting_responses r
                    WHERE r.queue = :queue AND r.project = f.project AND r.priority = f.priority AND r.rank <= f.late
                        AND f.late > 0
                    ORDER BY r.rank, r.position LIMIT f.most - f.place + 1)
                ) r
            ) AS responses
        FROM first f
    )
    SELECT (SELECT json_agg(l) FROM loads l)::text AS loads, (SELECT json_agg(r) FROM running r)::text AS running,
        (SELECT json_agg(w) FROM waiting w)::text AS waiting
    """
)

# Another transaction that holds a row is about to end it: SKIP LOCKED leaves it, so that nothing waits here. The
# condition is on the locked rows, because those of the statement's snapshot may be older. A row that was sent before,
# and lost, was charged already. Virtual time follows the order of all: foreground places are ahead of it.
_SEND = text(
    f"""
    WITH chosen AS MATERIALIZED (
        SELECT * FROM unnest({named_arrays(_SENT)}) WITH ORDINALITY AS c({_SENT.names}, number)
    ), locked AS MATERIALIZED (
        SELECT r.id, r.status, r.yielded, r.worker, r.sent_at FROM chosen c JOIN responses r ON r.id = c.id
        FOR NO KEY UPDATE OF r SKIP LOCKED
    ), sent AS (
        UPDATE responses r SET sent_at = now(), sends = r.sends + 1, foreground_place = c.foreground_place,
            sent_to = c.node, charged = coalesce(r.charged, c.charge)
        FROM locked l JOIN chosen c ON c.id = l.id
        WHERE r.id = l.id AND l.sent_at IS NULL
            AND (l.status = 'queued' OR l.status = 'in_progress' AND l.yielded AND l.worker IS NULL)
        RETURNING c.number, c.start, c.finish, c.step, {", ".join(f"r.{name}" for name in MESSAGE_COLUMNS)}
    ), charged AS (
        INSERT INTO flows (queue, project, priority, tag, step)
        SELECT :queue, s.project, s.priority, max(s.finish), max(s.step) FROM sent s GROUP BY s.project, s.priority
        ON CONFLICT (queue, project, priority) DO UPDATE SET tag = excluded.tag, step = excluded.step
    ), moved AS (
        UPDATE queues q SET virtual_time = s.start
        FROM (SELECT max(start) AS start FROM sent WHERE NOT foreground_place) s
        WHERE q.name = :queue AND s.start > q.virtual_time
    )
    SELECT {", ".join(MESSAGE_COLUMNS)} FROM sent ORDER BY number
    """
)

_CORRECT = text(
    f"""
    UPDATE flows f SET tag = f.tag + (c.used - c.charged) * f.step,
        scale = greatest({MIN_SCALE}, least({MAX_SCALE}, f.scale + c.part * (c.ratio - f.scale))),
        run_seconds = coalesce(
            f.run_seconds + c.part * (c.seconds_each - f.run_seconds), c.seconds_each, f.run_seconds),
        run_tokens = coalesce(f.run_tokens + c.part * (c.tokens_each - f.run_tokens), c.tokens_each, f.run_tokens)
    FROM (
        SELECT e.*, least(e.count / CAST({SCALE_RESPONSES} AS float8), 1) AS part,
            CAST(e.used AS float8) / greatest(e.cost, 1) AS ratio, e.seconds / nullif(e.count, 0) AS seconds_each,
            CAST(e.used AS float8) / nullif(e.count, 0) AS tokens_each
        FROM unnest({named_arrays(_FLOW, _CORRECTION)}) AS e({names(_FLOW, _CORRECTION)})
    ) c
    WHERE f.queue = :queue AND f.project = c.project AND f.priority = c.priority
    """
)

_BUSY_QUEUES = text(
    """
    WITH RECURSIVE busy AS (
        (SELECT r.queue FROM waiting_responses r ORDER BY r.queue LIMIT 1)
        UNION ALL
        SELECT n.queue FROM busy b CROSS JOIN LATERAL (
            SELECT r.queue FROM waiting_responses r WHERE r.queue > b.queue ORDER BY r.queue LIMIT 1
        ) n
    )
    SELECT queue FROM busy
    """
)
# A dispatch locks several flows, and so does this: SKIP LOCKED, or they could wait for each other.
_FORGET_IDLE = text(
    """
    DELETE FROM flows f USING (
        SELECT i.queue, i.project, i.priority FROM flows i LEFT JOIN queues q ON q.name = i.queue
        WHERE i.tag <= coalesce(q.virtual_time, 0) AND NOT EXISTS (
            SELECT FROM waiting_responses r
            WHERE r.queue = i.queue AND r.project = i.project AND r.priority = i.priority
        )
        FOR UPDATE OF i SKIP LOCKED
    ) idle WHERE f.queue = idle.queue AND f.project = idle.project AND f.priority = idle.priority
    """
)


async def dispatch(
    db: Database,
    queue: str,
    ahead: Ahead = NOTHING_AHEAD,
    corrections: Mapping[QueueFlow, FlowCorrection] | None = None,
) -> Sequence[Message] | None:
    """Marks the next responses of the queue as sent, each to a worker; returns their messages in order.

    The caller sends them. None: none waits, or there is no room (`QueueState.room`). The `corrections` of this queue's
    flows are made if the result is not None.
    """
    async with db.autocommit() as connection:
        state = (await states(connection, [queue], ahead, if_nobody_waits=False))[queue]
    if not (room := state.room()):
        return None
    async with db.begin() as connection:
        virtual_time = (await connection.execute(_LOCK, {"queue": queue})).scalar_one()
        if corrections:
            arrays = _FLOW.named_parameters(list(corrections)) | _CORRECTION.named_parameters(
                list(corrections.values())
            )
            await connection.execute(_CORRECT, {"queue": queue, **arrays})
        loads, flows, running = await _facts(connection, queue, virtual_time, room, ahead)
        sent = dispatched(loads, flows, virtual_time, room, running)
        if not sent:
            return []
        rows = await connection.execute(_SEND, {"queue": queue, **_SENT.named_parameters(sent)})
        return list(map(Message.of, rows))


async def _facts(
    connection: AsyncConnection, queue: str, virtual_time: float, room: Room, ahead: Ahead
) -> tuple[Sequence[Load], Sequence[WaitingFlow], Sequence[RunningFlow]]:
    most = {"most": room.open, "foreground_most": room.open + room.foreground, "foreground": room.foreground > 0}
    values = {"queue": queue, "virtual_time": virtual_time, "layout": LAYOUT, "margin": MARGIN, **most}
    found = (await connection.execute(_FACTS, values)).one()
    loads, running, waiting = (orjson.loads(each) if each else [] for each in found)
    runs = [RunningFlow(flow_of(row), row["count"]) for row in running]
    return [load_of(row, ahead) for row in loads], [waiting_flow(row) for row in waiting], runs


async def busy_queues(db: Database) -> Sequence[str]:
    """The queues of which responses wait."""
    return [row.queue for row in await db.execute(_BUSY_QUEUES)]


async def forget_idle_flows(db: Database) -> None:
    """Deletes the flows that are like new ones."""
    await db.execute(_FORGET_IDLE)
