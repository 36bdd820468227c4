"""Dispatch: which responses that wait in Postgres are sent next, by start-time fair queueing, and to which worker.

A flow is what waits of one queue, project and priority. Its tag is where its last response ends on the queue's virtual
time, which moves by cost / weight. The next response of a flow starts at its tag, or now if that has passed; those with
the smallest start tags are sent first. So flows get shares by their weights, a flow that is alone gets everything, and
one that was idle has no credit. Virtual time is the start tag of what was sent last.

Costs are estimates. What a response took beyond its charge moves the tag when it has ended. A flow whose estimates are
wrong in the same way each time is charged by its scale, which follows what its responses take.

A flow is found by what waits of it, so inserts and cancels take no lock and leave nothing behind. The row in `queues`
is the lock: dispatches of one queue happen one after the other. Their commits do not wait for the disk: after a crash
of Postgres the same responses are sent again, and the claim drops the duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.queue.message import MESSAGE_COLUMNS, WEIGHTS, Message
from app.store.columns import Column, Columns, named_arrays, names
from app.store.database import Database
from app.store.queue.placement import (
    KEPT_ROOM,
    MOST_ROOM,
    OPEN_ROOM,
    PLACED,
    is_foreground,
    loads,
    places,
    preferred,
    ran,
    some_foreground_waits,
    some_wait,
    waits,
)
from app.store.tables import IS_SENT

MAX_SENT = 64
"""Responses of one dispatch, if the workers have room. It reads as many of each leading flow."""
MAX_CHARGE = 2**31 - 1
SCALE_RESPONSES = 32.0
"""A flow's scale follows about so many of its latest responses."""
MIN_SCALE, MAX_SCALE = 0.01, 100.0
DEFAULT_WEIGHT = 1.0
"""Of a priority that this version does not know."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What of one queue shares its place in line."""

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

    def __add__(self, other: FlowCorrection) -> FlowCorrection:
        sums = (self.count + other.count, self.cost + other.cost)
        return FlowCorrection(*sums, self.charged + other.charged, self.used + other.used)


_FLOW: Columns[Flow] = Columns(Column("project", "text"), Column("priority", "int"))
_CORRECTION: Columns[FlowCorrection] = Columns(*(Column(name, "int8") for name in ("count", "cost", "charged", "used")))

_AHEAD = "CASE WHEN l.node = :node THEN CAST(:ahead AS int) ELSE 0 END"
_ROOMS = text(
    f"""
    WITH waiting AS MATERIALIZED (
        SELECT {some_wait(":queue")} AS "some", {some_foreground_waits(":queue")} AS foreground
    ), loads AS MATERIALIZED ({loads('(SELECT "some" FROM waiting) AND w.queue = :queue')})
    SELECT coalesce(sum(greatest({OPEN_ROOM}, 0)), 0) AS free,
        coalesce(sum(greatest({OPEN_ROOM} + {_AHEAD}, 0)), 0) AS room,
        coalesce(bool_or((SELECT foreground FROM waiting) AND {MOST_ROOM} > 0), false) AS foreground
    FROM loads l
    """
)

# A dispatch must not wait behind a bad plan, and with old statistics Postgres does not know that few rows are read: it
# is told to follow indexes.
_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit", "synchronous_commit")
_LOCK = text(
    f"""
    INSERT INTO queues (name, virtual_time) VALUES (:queue, 0)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING virtual_time, {", ".join(f"set_config('{name}', 'off', true)" for name in _OFF)}
    """
)

_WEIGHTS = """
    weights AS (
        SELECT * FROM unnest(CAST(:priorities AS int[]), CAST(:weights AS float8[])) AS w(priority, weight)
    )"""


def _weight(flow: str) -> str:
    of_project = f"(SELECT p.weight FROM projects p WHERE p.id = {flow}.project)"
    return f"coalesce(w.weight, {DEFAULT_WEIGHT}) * coalesce({of_project}, 1)"


_PART = f"least(c.count / CAST({SCALE_RESPONSES} AS float8), 1)"
_RATIO = "CAST(c.used AS float8) / greatest(c.cost, 1)"
_SCALE = f"greatest({MIN_SCALE}, least({MAX_SCALE}, f.scale + {_PART} * ({_RATIO} - f.scale)))"
_CORRECT = text(
    f"""
    WITH {_WEIGHTS}
    UPDATE flows f SET tag = f.tag + (c.used - c.charged) / ({_weight("c")}), scale = {_SCALE}
    FROM unnest({named_arrays(_FLOW, _CORRECTION)}) AS c({names(_FLOW, _CORRECTION)})
    LEFT JOIN weights w ON w.priority = c.priority
    WHERE f.queue = :queue AND f.project = c.project AND f.priority = c.priority
    """
)

# `busy` steps from flow to flow over the index. Each of the first flows offers its first rows, the offers are sorted by
# their tags, and the first of them are sent. A row that was sent before, and lost, was charged already.
#
# Of flows with the same tag, one that was idle goes first. Where costs are equal all flows have the same tags, and a
# single response would otherwise wait for one of each of the others.
#
# LIMIT makes Postgres look each flow up. It would compare all with all: its statistics know few flows.
#
# Another transaction that holds a row is about to end it: SKIP LOCKED leaves it, so that nothing waits here. The
# conditions are on the locked rows, because those of the statement's snapshot may be older.
_FIRST = f"""
    WITH RECURSIVE {_WEIGHTS}, loads AS MATERIALIZED ({loads("w.queue = :queue")}
    ), places AS MATERIALIZED ({{places}}
    ), room AS MATERIALIZED (
        SELECT CAST(least(coalesce(sum(p.room), 0), {MAX_SENT}) AS int) AS responses FROM places p
    ), busy AS (
        (SELECT r.project, r.priority, r.position FROM responses r WHERE r.queue = :queue AND {waits("r")}
        ORDER BY r.project, r.priority, r.position LIMIT 1)
        UNION ALL
        SELECT n.project, n.priority, n.position FROM busy b CROSS JOIN LATERAL (
            SELECT r.project, r.priority, r.position FROM responses r
            WHERE r.queue = :queue AND {waits("r")} AND (r.project, r.priority) > (b.project, b.priority)
            ORDER BY r.project, r.priority, r.position LIMIT 1
        ) n
    ), first AS MATERIALIZED (
        SELECT b.project, b.priority, greatest(f.tag, :virtual_time) AS start, coalesce(f.scale, 1) AS scale,
            {_weight("b")} AS weight, coalesce(f.tag < :virtual_time, true) AS was_idle
        FROM busy b
        LEFT JOIN LATERAL (
            SELECT * FROM flows f WHERE f.queue = :queue AND f.project = b.project AND f.priority = b.priority LIMIT 1
        ) f ON true
        LEFT JOIN weights w ON w.priority = b.priority
        WHERE {{of}}
        ORDER BY start, was_idle DESC, b.position LIMIT (SELECT responses FROM room)
    ), next AS MATERIALIZED (
        SELECT o.id, o.position, o.charge, f.project, f.priority, f.start + o.before / f.weight AS tag,
            o.charge / f.weight AS length, f.was_idle AND o.number = 1 AS was_idle, o.number, f.weight
        FROM first f CROSS JOIN LATERAL (
            SELECT c.*, sum(c.charge) OVER o - c.charge AS before, row_number() OVER o AS number FROM (
                SELECT r.id, r.position, CASE WHEN r.charged IS NULL
                    THEN least(ceil(r.cost * f.scale), {MAX_CHARGE}) ELSE 0 END AS charge
                FROM responses r
                WHERE r.queue = :queue AND r.project = f.project AND r.priority = f.priority AND {waits("r")}
                ORDER BY r.position LIMIT (SELECT responses FROM room)
            ) c WINDOW o AS (ORDER BY c.position ROWS UNBOUNDED PRECEDING)
        ) o ORDER BY tag, was_idle DESC, o.position LIMIT (SELECT responses FROM room)
    )"""

_SEND = f"""
    , locked AS MATERIALIZED (
        SELECT n.*, r.status, r.yielded, r.worker, r.sent_at, r.sent_to, r.previous_response_id, r.affinity
        FROM {{chosen}} n JOIN responses r ON r.id = n.id FOR NO KEY UPDATE OF r SKIP LOCKED
    ), lined AS (
        SELECT l.*, :queue AS queue, CAST({{place}} AS boolean) AS has_place,
            row_number() OVER (ORDER BY l.tag, l.was_idle DESC, l.position) AS in_order
        FROM locked l WHERE {waits("l")}
    ), rows AS MATERIALIZED (
        SELECT l.in_order AS number, l.queue, l.has_place,
            {preferred("l", "l.sent_to", ran("l.previous_response_id"))} AS preferred
        FROM lined l
    ), {PLACED}, sent AS (
        UPDATE responses r SET sent_at = now(), sends = r.sends + 1, foreground_place = l.has_place, sent_to = p.node,
            charged = coalesce(r.charged, CAST(l.charge AS int))
        FROM lined l JOIN placed p ON p.number = l.in_order WHERE r.id = l.id
        RETURNING {", ".join(f"r.{name}" for name in MESSAGE_COLUMNS)}, l.in_order, l.tag, l.tag + l.length AS finish
    ), charged AS (
        INSERT INTO flows (queue, project, priority, tag)
        SELECT :queue, s.project, s.priority, max(s.finish) FROM sent s GROUP BY s.project, s.priority
        ON CONFLICT (queue, project, priority) DO UPDATE SET tag = excluded.tag
    )"""
_SENT = f"SELECT {', '.join(f's.{name}' for name in MESSAGE_COLUMNS)} FROM sent s ORDER BY s.in_order"

_DISPATCH = text(
    f"""{_FIRST.format(of="true", places=places((False, f"{OPEN_ROOM} + {_AHEAD}")))}
    {_SEND.format(chosen="next", place="false")}, moved AS (
        UPDATE queues q SET virtual_time = s.tag FROM (SELECT max(tag) AS tag FROM sent) s
        WHERE q.name = :queue AND s.tag > q.virtual_time
    ) {_SENT}"""
)

# The first foreground responses of the order take the places that are kept for them. The others make background
# yield, and may only while their flow has less than the background flow that runs most: responses by weight. They are
# charged as all others, but virtual time stays: background that starts earlier still waits.
_DISPATCH_FOREGROUND = text(
    f"""{_FIRST.format(of=is_foreground("b"), places=places((True, MOST_ROOM)))}, running AS MATERIALIZED (
        SELECT b.project, b.priority, b.count, {_weight("b")} AS weight FROM (
            SELECT r.project, r.priority, count(*) FROM loads k JOIN responses r
                ON r.sent_to = k.node AND {IS_SENT.format("r.")}
            WHERE r.priority > 0 AND (r.worker IS NOT NULL OR r.foreground_place) GROUP BY r.project, r.priority
        ) b LEFT JOIN weights w ON w.priority = b.priority
    ), allowed AS MATERIALIZED (
        SELECT n.*, row_number() OVER (ORDER BY n.tag, n.was_idle DESC, n.position)
                <= (SELECT sum(greatest({KEPT_ROOM}, 0)) FROM loads l)
            OR n.number + coalesce(r.count, 0) <= n.weight * (
                SELECT max(m.count / m.weight) FROM running m WHERE NOT {is_foreground("m")}
            ) AS may_be_sent
        FROM next n LEFT JOIN running r ON r.project = n.project AND r.priority = n.priority
    ) {_SEND.format(chosen="(SELECT * FROM allowed WHERE may_be_sent)", place="true")} {_SENT}"""
)

_BUSY_QUEUES = text(
    f"""
    WITH RECURSIVE busy AS (
        (SELECT r.queue FROM responses r WHERE {waits("r")} ORDER BY r.queue LIMIT 1)
        UNION ALL
        SELECT n.queue FROM busy b CROSS JOIN LATERAL (
            SELECT r.queue FROM responses r WHERE {waits("r")} AND r.queue > b.queue ORDER BY r.queue LIMIT 1
        ) n
    )
    SELECT queue FROM busy
    """
)
# A dispatch locks several flows, and so does this: SKIP LOCKED, or they could wait for each other.
_FORGET_IDLE = text(
    f"""
    DELETE FROM flows f USING (
        SELECT i.queue, i.project, i.priority FROM flows i JOIN queues q ON q.name = i.queue
        WHERE i.tag <= q.virtual_time AND NOT EXISTS (
            SELECT FROM responses r
            WHERE r.queue = i.queue AND r.project = i.project AND r.priority = i.priority AND {waits("r")}
        )
        FOR UPDATE OF i SKIP LOCKED
    ) idle WHERE f.queue = idle.queue AND f.project = idle.project AND f.priority = idle.priority
    """
)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many more responses than it has slots one worker wants, by its node: so many are about to end there."""

    node: str = ""
    responses: int = 0


NOTHING_AHEAD = Ahead()


async def dispatch(
    db: Database, queue: str, ahead: Ahead = NOTHING_AHEAD, corrections: Mapping[Flow, FlowCorrection] | None = None
) -> Sequence[Message] | None:
    """Marks the next responses of the queue as sent, each to a worker; returns their messages in order.

    The caller sends them. Foreground responses come first, as far as they have places of their own, or may make
    background yield. None: none waits, or no worker has a slot for one, and more than half of what is `ahead` is there
    (a dispatch of one costs as much as one of many). The `corrections` of this queue's flows are made if the result is
    not None.
    """
    values = {"queue": queue, "node": ahead.node, "ahead": ahead.responses}
    async with db.autocommit() as connection:
        rooms = (await connection.execute(_ROOMS, values)).one()
    is_open = rooms.free > 0 or (rooms.room > 0 and 2 * rooms.room >= ahead.responses)
    if not (is_open or rooms.foreground):
        return None
    weights = {"priorities": list(WEIGHTS), "weights": list(WEIGHTS.values())}
    async with db.begin() as connection:
        virtual_time = (await connection.execute(_LOCK, {"queue": queue})).scalar_one()
        if corrections:
            await _correct_flows(connection, queue, corrections, weights)
        order = {"queue": queue, "virtual_time": virtual_time, **weights}
        sent: list[Message] = []
        if rooms.foreground:
            sent += map(Message.of, await connection.execute(_DISPATCH_FOREGROUND, order))
        if is_open:
            sent += map(Message.of, await connection.execute(_DISPATCH, {**order, **values}))
        return sent


async def _correct_flows(
    connection: AsyncConnection, queue: str, corrections: Mapping[Flow, FlowCorrection], weights: Mapping[str, Any]
) -> None:
    flows, ended = list(corrections), list(corrections.values())
    arrays = {**_FLOW.named_parameters(flows), **_CORRECTION.named_parameters(ended)}
    await connection.execute(_CORRECT, {"queue": queue, **weights, **arrays})


async def busy_queues(db: Database) -> Sequence[str]:
    """The queues of which responses wait."""
    return [row.queue for row in await db.execute(_BUSY_QUEUES)]


async def forget_idle_flows(db: Database) -> None:
    """Deletes the flows that are like new ones."""
    await db.execute(_FORGET_IDLE)
