"""What dispatches and inserts decide by: the workers of a queue and what they have, and whether anybody waits in it.

A response in line is queued, or has yielded and waits for its turn again. Without `sent_at` it waits here (the view
`waiting_responses`). With one it was sent to the worker whose node `sent_to` names: its message is in that worker's own
list in Redis, unless it was lost. What a worker has is what was sent to it and has not ended, claimed or not (the view
`worker_loads`). So balance is exact, and no worker tells what it has.

What operators pause stays in line, and nobody waits behind it: its flows are as flows that do not wait (PAUSED).

Each ORDER BY names the columns of an index. Without it Postgres may read the table from its first row: after a long
queue its statistics are out of date, and promise a matching row there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.queue.message import Priority
from app.scheduling.decisions import QueueState
from app.scheduling.loads import NOTHING_AHEAD, Ahead, Load
from app.scheduling.order import Flow, WaitingFlow, WaitingResponse
from app.scheduling.placement import Candidate
from app.scheduling.windows import MARGIN
from app.store.layout import LAYOUT

PAUSED = "(SELECT u.project FROM pauses u WHERE u.queue = {queue})"
"""The projects that are paused in a queue; NULL: all. So `project NOT IN PAUSED` is true of those that are not."""
WAITS = """(SELECT true FROM waiting_responses r WHERE r.queue = {queue}
    ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1) IS NOT NULL"""
"""Whether somebody waits in a queue, or is paused in it."""
# It steps from project to project over the index, past those that are paused, however many responses these have.
_WAITS_BESIDE_PAUSES = f"""
    EXISTS (
        WITH RECURSIVE beside AS (
            (SELECT r.project FROM waiting_responses r WHERE r.queue = q.queue
                ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1)
            UNION ALL
            SELECT n.project FROM beside b CROSS JOIN LATERAL (
                SELECT r.project FROM waiting_responses r WHERE r.queue = q.queue AND r.project > b.project
                ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1
            ) n WHERE b.project IN {PAUSED.format(queue="q.queue")}
        )
        SELECT FROM beside b WHERE b.project NOT IN {PAUSED.format(queue="q.queue")}
    )"""


# An array that the planner cannot see is planned for once; otherwise each execution would take 0.3 ms to plan.
def _states(waits: str, foreground: str) -> TextClause:
    return text(
        f"""
        WITH asked AS MATERIALIZED (
            SELECT q.queue, {waits} AS waits,
                (SELECT true FROM waiting_responses r WHERE r.queue = q.queue AND r.priority IN (1, 3, 8) {foreground}
                    ORDER BY r.queue LIMIT 1) IS NOT NULL AS foreground_waits,
                ARRAY{PAUSED.format(queue="q.queue")} AS paused
            FROM unnest((SELECT CAST(:queues AS text[]))) AS q(queue)
        )
        SELECT a.*, l.node, l.slots, l.answers, l.foreground, l.background
        FROM asked a LEFT JOIN worker_loads l ON l.queue = a.queue AND l.layout >= {LAYOUT}
            AND CASE WHEN a.waits THEN CAST(:if_some_wait AS bool) ELSE CAST(:if_nobody_waits AS bool) END
        """
    )


_STATES = _states(WAITS.format(queue="q.queue"), "")
# A plan that can step over what is paused takes a tenth longer to begin: it is for queues in which something is.
_STATES_BESIDE_PAUSES = _states(_WAITS_BESIDE_PAUSES, f"AND r.project NOT IN {PAUSED.format(queue='q.queue')}")


async def states(
    connection: AsyncConnection,
    queues: Collection[str],
    ahead: Ahead = NOTHING_AHEAD,
    *,
    if_some_wait: bool = True,
    if_nobody_waits: bool = True,
) -> dict[str, QueueState]:
    """The state of each of these queues. A queue's loads take the longest: they are read `if_some_wait` in it, and
    `if_nobody_waits`."""
    loads_of = {"if_some_wait": if_some_wait, "if_nobody_waits": if_nobody_waits}
    values = {"queues": sorted(queues), **loads_of}
    loads: dict[str, list[Load]] = {queue: [] for queue in queues}
    waits: dict[str, tuple[bool, bool, frozenset[str | None]]] = {}
    rows = (await connection.execute(_STATES, values)).all()
    if any(row.paused for row in rows):
        rows = (await connection.execute(_STATES_BESIDE_PAUSES, values)).all()
    for row in rows:
        waits[row.queue] = row.waits, row.foreground_waits, frozenset(row.paused)
        if row.node is not None:
            loads[row.queue].append(load_of(row._asdict(), ahead))
    return {queue: QueueState(loads[queue], *waits[queue]) for queue in queues}


def load_of(row: Mapping[str, Any], ahead: Ahead = NOTHING_AHEAD) -> Load:
    """A row of `worker_loads`."""
    more = ahead.responses if row["node"] == ahead.node else 0
    return Load(row["node"], row["slots"], row["answers"], row["foreground"], row["background"], more)


# -- flows -------------------------------------------------------------------------------------------------------------

_LEAD = f"{MARGIN} * coalesce(f.run_seconds, 0)"
# `busy` steps from flow to flow over the index. LIMIT makes Postgres look each flow up: it would compare all with all,
# because its statistics know few flows.
FLOWS = f"""busy AS (
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
            coalesce(max(f.part) OVER (PARTITION BY b.project), 0) AS part, {_LEAD} AS lead_seconds,
            CASE WHEN b.priority = {Priority.WINDOW.value}
                THEN CAST(1000000 * (extract(epoch FROM now()) + {_LEAD}) AS bigint) ELSE 0 END AS late,
            (SELECT p.weight FROM projects p WHERE p.id = b.project) AS weight
        FROM busy b LEFT JOIN LATERAL (
            SELECT * FROM flows f WHERE f.queue = :queue AND f.project = b.project AND f.priority = b.priority LIMIT 1
        ) f ON true
        WHERE b.project NOT IN {PAUSED.format(queue=":queue")}
    )"""
"""The flows of a queue of which responses wait, as `flows_of`. What has a rank up to `late` cannot be in time."""
_IS_OF_FLOW = "r.queue = :queue AND r.project = f.project AND r.priority = f.priority"
IS_IN_TIME = f"{_IS_OF_FLOW} AND r.rank > f.late"
IS_LATE = f"{_IS_OF_FLOW} AND r.rank <= f.late AND f.late > 0"
"""Of the responses of a flow: those in time come first, each kind by rank and position."""
IN_ORDER = "r.position, r.cost, r.charged IS NOT NULL, r.rank, extract(epoch FROM r.due_at - now())"
"""What the order is made of, from a response that waits."""


def waiting_flow(row: Mapping[str, Any]) -> WaitingFlow:
    """Of a row of `flows_of`, with its first `responses`: of each IN_ORDER, and what else a candidate has."""
    responses = [_waiting_response(*columns) for columns in row["responses"]]
    scale = 1.0 if row["scale"] is None else row["scale"]
    return WaitingFlow(flow_of(row), responses, row["beside"], row["tag"], scale, row["part"], row["lead_seconds"])


def _waiting_response(
    position: int,
    cost: int,
    is_charged: bool,
    rank: int,
    seconds_left: float | None,
    id_: str = "",
    sent_to: str | None = None,
    before: str | None = None,
    affinity: int | None = None,
) -> WaitingResponse:
    candidate = Candidate(id_, (sent_to, before), affinity)
    left = math.inf if seconds_left is None else seconds_left
    return WaitingResponse(candidate, position, cost, is_charged, rank, left)


def flow_of(row: Mapping[str, Any]) -> Flow:
    """Of a row with its project, priority and weight."""
    weight = 1.0 if row["weight"] is None else float(row["weight"])  # of a project without a row
    return Flow(row["project"], row["priority"], weight)
