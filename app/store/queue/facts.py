"""What dispatches and inserts decide by: the workers of a queue and what they have, and whether anybody waits in it.

A response in line is queued, or has yielded and waits for its turn again. Without `sent_at` it waits here (the view
`waiting_responses`). With one it was sent to the worker whose node `sent_to` names: its message is in that worker's own
list in Redis, unless it was lost. What a worker has is what was sent to it and has not ended, claimed or not (the view
`worker_loads`). So balance is exact, and no worker tells what it has.

What operators pause stays in line, and nobody waits behind it: its flows are as flows that do not wait. Of
`pauses`, NULL stands for all projects, so `project NOT IN (SELECT ...)` is true of those that are not paused.

Each ORDER BY names the columns of an index. Without it Postgres may read the table from its first row: after a long
queue its statistics are out of date, and promise a matching row there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import text

from app.scheduling.decisions import QueueState
from app.scheduling.loads import NOTHING_AHEAD, Ahead, Load
from app.scheduling.order import Flow, WaitingFlow, WaitingResponse
from app.scheduling.placement import Candidate
from app.store.database import Connection, Database
from app.store.guards import IS_FOREGROUND
from app.store.layout import LAYOUT

_UNPAUSED = "{}.project NOT IN (SELECT u.project FROM pauses u WHERE u.queue = q.queue)"
# An array that the planner cannot see is planned for once; otherwise each execution would take 0.3 ms to plan.
_ASKED = f"""
    WITH asked AS MATERIALIZED (
        SELECT q.queue, {{waits}} AS waits,
            (SELECT true FROM waiting_responses r
                WHERE r.queue = q.queue AND {IS_FOREGROUND.format("r.")} AND {{unpaused}}
                ORDER BY r.queue LIMIT 1) IS NOT NULL AS foreground_waits,
            ARRAY(SELECT u.project FROM pauses u WHERE u.queue = q.queue) AS paused
        FROM unnest((SELECT CAST(:queues AS text[]))) AS q(queue)
    )
    SELECT a.*, l.node, l.slots, l.answers, l.foreground, l.background
    FROM asked a LEFT JOIN worker_loads l ON l.queue = a.queue AND l.layout >= :layout
        AND CASE WHEN a.waits THEN CAST(:if_some_wait AS bool) ELSE CAST(:if_nobody_waits AS bool) END
"""
_WAITS = """
            (SELECT true FROM waiting_responses r WHERE r.queue = q.queue
                ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1) IS NOT NULL"""
# To step over what is paused takes a tenth longer to begin. It steps from project to project over the index, past those
# that are paused, however many responses these have.
_WAITS_BESIDE_PAUSES = f"""
            EXISTS (
                WITH RECURSIVE beside AS (
                    (SELECT r.project FROM waiting_responses r WHERE r.queue = q.queue
                        ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1)
                    UNION ALL
                    SELECT n.project FROM beside b CROSS JOIN LATERAL (
                        SELECT r.project FROM waiting_responses r WHERE r.queue = q.queue AND r.project > b.project
                        ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1
                    ) n WHERE b.project IN (SELECT u.project FROM pauses u WHERE u.queue = q.queue)
                )
                SELECT FROM beside b WHERE {_UNPAUSED.format("b")}
            )"""
_STATES = text(_ASKED.format(waits=_WAITS, unpaused="true"))
_STATES_BESIDE_PAUSES = text(_ASKED.format(waits=_WAITS_BESIDE_PAUSES, unpaused=_UNPAUSED.format("r")))


async def states(
    on: Database | Connection,
    queues: Collection[str],
    ahead: Ahead = NOTHING_AHEAD,
    *,
    if_some_wait: bool = True,
    if_nobody_waits: bool = True,
) -> dict[str, QueueState]:
    """The state of each of these queues. A queue's loads take the longest: they are read `if_some_wait` in it, and
    `if_nobody_waits`."""
    loads_of = {"if_some_wait": if_some_wait, "if_nobody_waits": if_nobody_waits}
    values = {"queues": sorted(queues), "layout": LAYOUT, **loads_of}
    loads: dict[str, list[Load]] = {queue: [] for queue in queues}
    waits: dict[str, tuple[bool, bool, frozenset[str | None]]] = {}
    rows = list(await on.execute(_STATES, values))
    if any(row.paused for row in rows):
        rows = list(await on.execute(_STATES_BESIDE_PAUSES, values))
    for row in rows:
        waits[row.queue] = row.waits, row.foreground_waits, frozenset(row.paused)
        if row.node is not None:
            loads[row.queue].append(load_of(row._asdict(), ahead))
    return {queue: QueueState(loads[queue], *waits[queue]) for queue in queues}


def load_of(row: Mapping[str, Any], ahead: Ahead = NOTHING_AHEAD) -> Load:
    """A row of `worker_loads`."""
    more = ahead.responses if row["node"] == ahead.node else 0
    return Load(row["node"], row["slots"], row["answers"], row["foreground"], row["background"], more)


def waiting_flow(row: Mapping[str, Any]) -> WaitingFlow:
    """The flow of a row, with the first of its waiting `responses` (dispatch.py)."""
    responses = [
        WaitingResponse(
            Candidate(id_, (sent_to, before), affinity),
            *(position, cost, is_charged, rank),
            math.inf if seconds_left is None else seconds_left,
        )
        for position, cost, is_charged, rank, seconds_left, id_, sent_to, before, affinity in row["responses"]
    ]
    scale = 1.0 if row["scale"] is None else row["scale"]
    return WaitingFlow(flow_of(row), responses, row["beside"], row["tag"], scale, row["part"], row["lead_seconds"])


def flow_of(row: Mapping[str, Any]) -> Flow:
    """The flow of a row with project, priority and weight."""
    weight = 1.0 if row["weight"] is None else float(row["weight"])  # of a project without a row
    return Flow(row["project"], row["priority"], weight)
