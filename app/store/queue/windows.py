"""How far work in windows has risen: maintenance computes it now and then, and dispatches read it in the flows.

The rise is a decision of `app/scheduling/windows.py`. It is made of what is due in each flow, and when; of what
responses took of late (`dispatch.py` keeps their means); and of which other projects were served.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import text

from app.queue.message import Priority
from app.scheduling.windows import MARGIN, Demand, Measured, part_of, share_of
from app.store.database import Database
from app.store.queue.dispatch import QueueFlow
from app.store.queue.facts import flow_of

STEPS = 16
"""Deadlines that lie closer to each other than a factor of e^(1/16), 6 %, count as one: the nearest."""

# An index has all that this reads. What runs counts as if it had just begun: it is little beside what waits for hours.
# Each line of a batch that has not ended stands for its part of those that are no responses yet, too.
_DEMANDS = text(
    """
    SELECT d.*, (SELECT p.weight FROM projects p WHERE p.id = d.project) AS weight,
        CAST((SELECT s.slots FROM queue_slots s WHERE s.queue = d.queue) AS float8) AS slots
    FROM (
        SELECT queue, project, floor(:steps * ln(extract(epoch FROM due_at - now())::float8))::int AS step,
            sum(cost * coalesce(b.lines, 1))::float8 AS tokens
        FROM responses LEFT JOIN (
            SELECT id, CAST(total - numbered AS float8) / (expanded - numbered) AS lines
            FROM batches WHERE status = 'in_progress' AND expanded < total AND expanded > numbered
        ) b ON b.id = batch_id
        WHERE due_at IS NOT NULL AND finished_at IS NULL AND due_at > now()
        GROUP BY queue, project, step
    ) d
    """
)
_FLOWS = text(
    """
    SELECT f.queue, f.project, f.priority, f.part, f.scale, f.run_seconds, f.run_tokens,
        (SELECT p.weight FROM projects p WHERE p.id = f.project) AS weight
    FROM flows f WHERE f.queue = ANY(CAST(:queues AS text[]))
    """
)


# A dispatch locks its queue, and then flows: so does this.
_LOCK = text("SELECT FROM queues WHERE name = ANY(CAST(:queues AS text[])) ORDER BY name FOR NO KEY UPDATE")
_RAISE = text(
    f"""
    INSERT INTO flows (queue, project, priority, tag, step, part)
    SELECT c.queue, c.project, {Priority.WINDOW.value}, 0, 0, c.part
    FROM unnest((SELECT CAST(:queues AS text[])), CAST(:projects AS text[]), CAST(:parts AS float8[]))
        AS c(queue, project, part)
    ON CONFLICT (queue, project, priority) DO UPDATE SET part = excluded.part
    """
)


async def raise_all(db: Database) -> None:
    """Writes how far the work in windows of each flow rises. Without such work it is one look at an empty index."""
    demands = await db.execute(_DEMANDS, {"steps": STEPS})
    queues = sorted({row.queue for row in demands})
    if not queues:
        return
    flows = await db.execute(_FLOWS, {"queues": queues})
    parts: dict[QueueFlow, float] = {}
    for queue in queues:
        parts |= _parts(queue, [row for row in demands if row.queue == queue], [f for f in flows if f.queue == queue])
    before = {QueueFlow(row.queue, row.project, row.priority): row.part for row in flows}
    await raise_to(db, {flow: part for flow, part in parts.items() if part != before.get(flow, 0.0)})


async def raise_to(db: Database, parts: Mapping[QueueFlow, float]) -> None:
    """Writes how far the work in windows of these flows rises."""
    if not parts:
        return
    flows = {"queues": [flow.queue for flow in parts], "projects": [flow.project for flow in parts]}
    async with db.begin() as connection:
        await connection.execute(_LOCK, {"queues": flows["queues"]})
        await connection.execute(_RAISE, {**flows, "parts": list(parts.values())})


def _parts(queue: str, demands: Sequence[Any], flows: Sequence[Any]) -> dict[QueueFlow, float]:
    """How far each project's work in windows rises in one queue."""
    others = [flow_of(row._mapping) for row in flows if row.priority != Priority.WINDOW or row.part > 0]
    known = {row.project: row for row in flows if row.priority == Priority.WINDOW}
    parts = {}
    for project in {row.project for row in demands}:
        due = [row for row in demands if row.project == project]
        mine = known.get(project)
        measured = _measured([mine, *flows])
        share = share_of(flow_of({**due[0]._mapping, "priority": Priority.WINDOW}), others)
        rate = (due[0].slots or 0.0) * measured.speed * share
        scale = 1.0 if mine is None else mine.scale
        left = [Demand(math.exp(row.step / STEPS), row.tokens * scale) for row in due]
        parts[QueueFlow(queue, project, Priority.WINDOW)] = part_of(left, rate, MARGIN * measured.seconds)
    return parts


def _measured(flows: Iterable[Any]) -> Measured:
    """The pace of the first flow of which something has ended."""
    known = (row for row in flows if row is not None and row.run_seconds is not None)
    return next((Measured(row.run_seconds, row.run_tokens) for row in known), Measured(0.0, 0.0))
