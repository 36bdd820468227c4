"""Placement: what waits in Postgres, what each worker has, and which worker takes a response: parts of SQL statements.

A response in line is queued, or has yielded and waits for its turn again. Without `sent_at` it waits here. With one it
was sent to the worker whose node `sent_to` names: its message is in that worker's own list in Redis, unless it was
lost. What a worker has is what was sent to it and has not ended, claimed or not. So balance is exact, and no worker
tells what it has.

A response is placed where the prefix of its prompt was read, if that worker has room and not much more to do than the
emptiest one: `SURPLUS`. All others fill the emptiest workers first.

Each ORDER BY names the columns of an index. Without it Postgres may read the table from its first row: after a long
queue its statistics are out of date, and promise a matching row there.
"""

from __future__ import annotations

from app.queue.message import FOREGROUND
from app.store.layout import LAYOUT
from app.store.tables import IS_SENT, in_line

KEPT_PART = 16
"""One of so many slots of each worker with two or more, and one at least, is kept for foreground responses."""
MOST_PART = 2
"""Foreground responses push background out of one of so many slots at most, and of one at least."""
SURPLUS = 0.5
"""How much more of its slots may be taken in the worker that has read a prefix than in the emptiest one.

A response that moves is computed from its first token. One that stays has a slot, and shares steps with more others.
With less, chance alone makes agents move, and what they read again makes more of them move (docs/performance.md)."""


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


def loads(condition: str) -> str:
    """A query for the workers `w` that take responses, and what each has.

    Its columns: queue, node, slots, how many are `kept` for foreground responses, the `most` of these; `answers`, which
    it has in the places open to all, `foreground`, which it has in foreground places.
    """
    return f"""
        SELECT w.queue, w.node, w.slots, {kept("w.slots")} AS kept, {most_foreground("w.slots")} AS most,
            h.answers, h.foreground
        FROM workers w CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE NOT s.foreground_place) AS answers,
                count(*) FILTER (WHERE s.foreground_place) AS foreground
            FROM responses s WHERE s.sent_to = w.node AND {IS_SENT.format("s.")} AND s.priority > 0
        ) h
        WHERE {condition} AND w.lease_until > now() AND w.layout >= {LAYOUT} AND w.slots > 0"""


OPEN_ROOM = "l.slots - greatest(l.kept, l.foreground) - l.answers"
"""How many more a worker of `loads` has slots for that are open to all."""
KEPT_ROOM = "l.kept - l.foreground"
"""How many more foreground responses a worker of `loads` has slots for that are kept for them."""
MOST_ROOM = "l.most - l.foreground"
"""How many more foreground responses may push background out of a worker of `loads`."""


def places(*kinds: tuple[bool, str]) -> str:
    """A query for the rooms of `loads l`: a row for each worker and kind that has any.

    A kind is whether it is of foreground places, and an expression for its room.
    """
    rows = ", ".join(f"({str(foreground).lower()}, {room})" for foreground, room in kinds)
    return f"""
        SELECT l.queue, l.node, l.slots, p.has_place, p.room, l.answers + l.foreground AS load,
            min((l.answers + l.foreground) / CAST(l.slots AS float8)) OVER (PARTITION BY l.queue, p.has_place) AS least
        FROM loads l CROSS JOIN LATERAL (VALUES {rows}) p(has_place, room) WHERE p.room > 0"""


def preferred(row: str, *nodes: str) -> str:
    """The node of `places` that has read the prefix of the response `row`; NULL if none has room.

    It is the first of these `nodes`, or that which the response's affinity falls to: each worker draws a number for
    each affinity, and the lowest wins. So nothing is stored, and if a worker comes or goes, only its own move.
    """
    same = f"p.queue = {row}.queue AND p.has_place = {row}.has_place"
    known = [f"(SELECT p.node FROM places p WHERE {same} AND p.node = {node})" for node in nodes]
    drawn = f"(SELECT p.node FROM places p WHERE {same} ORDER BY hashtextextended(p.node, {row}.affinity) LIMIT 1)"
    return f"coalesce({', '.join(known)}, CASE WHEN {row}.affinity IS NOT NULL THEN {drawn} END)"


def ran(response_id: str) -> str:
    """The node that a response was sent to last."""
    return f"(SELECT x.sent_to FROM responses x WHERE x.id = {response_id})"


# `rows` has number, queue, has_place and preferred; `placed` has number and node, of as many as there is room for, in
# the order of their numbers.
PLACED = f"""
    wishes AS MATERIALIZED (
        SELECT r.number, r.queue, r.has_place, p.node,
            row_number() OVER (PARTITION BY p.node, p.has_place ORDER BY r.number) AS nth,
            p.room, p.load, p.slots, p.least
        FROM rows r LEFT JOIN places p
            ON p.queue = r.queue AND p.has_place = r.has_place AND p.node = r.preferred
    ), granted AS MATERIALIZED (
        SELECT w.number, w.has_place, w.node FROM wishes w
        WHERE w.nth <= w.room AND w.load + w.nth - 1 <= w.slots * (w.least + {SURPLUS})
    ), others AS (
        SELECT w.number, w.queue, w.has_place,
            row_number() OVER (PARTITION BY w.queue, w.has_place ORDER BY w.number) AS spot
        FROM wishes w WHERE w.number NOT IN (SELECT number FROM granted)
    ), spots AS (
        SELECT p.queue, p.has_place, p.node, row_number() OVER (
            PARTITION BY p.queue, p.has_place ORDER BY (p.load + n) / CAST(p.slots AS float8), p.node) AS spot
        FROM places p CROSS JOIN LATERAL (
            SELECT count(*) AS count FROM granted g WHERE g.node = p.node AND g.has_place = p.has_place
        ) g CROSS JOIN LATERAL generate_series(g.count + 1, least(p.room, g.count + (SELECT count(*) FROM others))) n
    ), placed AS MATERIALIZED (
        SELECT g.number, g.node FROM granted g
        UNION ALL
        SELECT o.number, s.node FROM others o JOIN spots s
            ON s.queue = o.queue AND s.has_place = o.has_place AND s.spot = o.spot
    )"""
