"""What is known of one response that has not ended: for operators who ask why it does not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import text

from app.queue.message import Mode, Priority, class_of
from app.scheduling.decisions import QueueState
from app.scheduling.line import LinedFlow, Place, place_of
from app.store.database import Connection, Database
from app.store.guards import DUE_RANK
from app.store.queue import pace, pauses, worker_rows
from app.store.queue.facts import FLOWS, IN_ORDER, IS_IN_TIME, IS_LATE, states, waiting_flow
from app.store.queue.fleet import LINES_IN_FILES
from app.store.queue.pace import Pace
from app.store.queue.pauses import PauseRow
from app.store.queue.worker_rows import WorkerRow

MOST_READ = 2_000
"""Responses of other flows, and of its own, by which the place of one is computed."""
MOST_OF_FLOW = 1_000
LEAST_OF_FLOW = 8
MOST_CHUNKS = 64
"""Chunks with steps that are looked at for calls without a result."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """A response's row. Times are seconds ago, or (`..._left`) ahead."""

    id: str
    project: str
    project_name: str | None
    key_id: str | None
    model: str
    queue: str
    priority: int
    status: str
    background: bool
    position: int
    rank: int
    """What it goes by in its flow, before its position."""
    attempt: int
    crashes: int
    yields: int
    yielded: bool
    sends: int
    worker: str | None
    sent_to: str | None
    layout: int
    inserted_at: datetime
    inserted_seconds: float
    sent_seconds: float | None
    started_seconds: float | None
    """Since its first claim."""
    finished_seconds: float | None
    queue_seconds_left: float | None
    run_seconds_left: float | None
    error: Mapping[str, Any] | None
    incomplete_details: Mapping[str, Any] | None
    output_tokens: int | None

    @property
    def waits(self) -> bool:
        """Whether it is in line for a dispatch."""
        in_line = self.status == "queued" or (self.status == "in_progress" and self.yielded and self.worker is None)
        return in_line and self.sent_seconds is None

    @property
    def service_class(self) -> tuple[str, Mode]:
        return class_of(self.priority)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a response that has not ended stands among."""

    workers: Sequence[WorkerRow]
    """Of its queue."""
    state: QueueState
    """What dispatches of this version see."""
    paces: Sequence[Pace]
    """Of its queue."""
    place: Place | None
    """None: it does not wait."""
    pauses: Sequence[PauseRow]
    """Of its queue."""
    open_calls: Sequence[str]
    """The names of the hosted tools that its last turn called and that have not answered."""


_AGO = "extract(epoch FROM now() - r.{})::float8"
_LEFT = "extract(epoch FROM r.{} - now())::float8"
_ROW = text(
    f"""
    SELECT r.id, r.project, p.name AS project_name, r.key_id, r.model, r.queue, r.priority, r.status, r.background,
        r.position, coalesce(r.rank, r.position) AS rank, r.attempt, r.crashes, r.yields, r.yielded, r.sends, r.worker,
        r.sent_to, r.layout, r.inserted_at,
        {_AGO.format("inserted_at")} AS inserted_seconds, {_AGO.format("sent_at")} AS sent_seconds,
        {_AGO.format("started_at")} AS started_seconds, {_AGO.format("finished_at")} AS finished_seconds,
        {_LEFT.format("queue_deadline")} AS queue_seconds_left, {_LEFT.format("run_deadline")} AS run_seconds_left,
        r.error, r.incomplete_details, CAST(r.usage->>'output_tokens' AS int) AS output_tokens
    FROM responses r LEFT JOIN projects p ON p.id = r.project WHERE r.id = :id
    """
)

# Lines that are still in files come to their flow later, each with the rank of its batch.
_LINES = f"""
    SELECT coalesce(sum(l.lines), 0)::bigint FROM ({LINES_IN_FILES.format("due_at")}) l
    WHERE l.queue = :queue AND l.project = {{0}}.project AND {{0}}.priority = {Priority.WINDOW.value}
"""
# Each flow gives the first ones of those that wait, in the order in which they are sent.
_FLOWS = text(
    f"""
    WITH RECURSIVE {FLOWS}, sized AS (
        SELECT *, least(greatest(:most / count(*) OVER (), :least_of_flow), :most_of_flow) AS most FROM flows_of
    )
    SELECT f.*,
        (SELECT count(*) FROM waiting_responses r
            WHERE r.queue = :queue AND r.project = f.project AND r.priority = f.priority) AS number,
        ({_LINES.format("f")}) AS in_files,
        (SELECT json_agg(json_build_array({IN_ORDER})) FROM (
            SELECT * FROM (
                (SELECT r.*, false AS is_late FROM waiting_responses r WHERE {IS_IN_TIME}
                ORDER BY r.rank, r.position LIMIT f.most)
                UNION ALL
                (SELECT r.*, true FROM waiting_responses r WHERE {IS_LATE} ORDER BY r.rank, r.position LIMIT f.most)
            ) r ORDER BY r.is_late, r.rank, r.position LIMIT f.most
        ) r)::text AS first
    FROM sized f
    """
)
_RANK = DUE_RANK.format("l.due_at")
_BEFORE = text(
    f"""
    SELECT (SELECT q.virtual_time FROM queues q WHERE q.name = :queue) AS virtual_time, (
        SELECT count(*) FROM waiting_responses r
        WHERE r.queue = :queue AND r.project = o.project AND r.priority = o.priority
            AND (r.rank <= :late, r.rank, r.position) < (CAST(:rank AS bigint) <= :late, :rank, :position)
    ) AS number, (
        {_LINES.format("o")} AND ({_RANK} <= :late, {_RANK}) < (CAST(:rank AS bigint) <= :late, :rank)
    ) AS in_files
    FROM (SELECT CAST(:project AS text) AS project, CAST(:priority AS int) AS priority) o
    """
)
# An "end" of a turn names its calls, a result answers one (workers/generation/history.py).
_STEPS = text(
    """
    SELECT CASE WHEN s.step->'end' IS NULL THEN s.step->'result'->>'index' END AS answered,
        (SELECT json_object_agg(c.key, c.value->>'name') FROM json_each(s.step->'end'->'calls') c)::text AS calls
    FROM (
        SELECT c.first, c.steps FROM chunks c WHERE c.response_id = :id AND c.steps IS NOT NULL
        ORDER BY c.first DESC LIMIT :most
    ) c CROSS JOIN LATERAL json_array_elements(c.steps) WITH ORDINALITY AS s(step, number)
    ORDER BY c.first DESC, s.number DESC
    """
)


async def find(db: Database, response_id: str) -> ResponseFacts | None:
    """The response of any project; None: there is none. Raises StoreUnavailable."""
    rows = await db.execute(_ROW, {"id": response_id})
    return next((ResponseFacts(**row._mapping) for row in rows), None)


async def surroundings(db: Database, response: ResponseFacts) -> Surroundings:
    """Raises StoreUnavailable."""
    async with db.begin() as connection:
        workers = await worker_rows.read_workers(connection)  # First: what follows follows indexes.
        return Surroundings(
            workers=[each for each in workers if each.queue == response.queue],
            state=(await states(connection, [response.queue]))[response.queue],
            paces=[each for each in await pace.read(connection) if each.queue == response.queue],
            place=await _place(connection, response) if response.waits else None,
            pauses=[each for each in await pauses.read_pauses(connection) if each.queue == response.queue],
            open_calls=await _open_calls(connection, response.id) if response.worker is not None else (),
        )


async def _place(connection: Connection, response: ResponseFacts) -> Place | None:
    """None: it has just been sent, or is paused."""
    bounds = {"most": MOST_READ, "least_of_flow": LEAST_OF_FLOW, "most_of_flow": MOST_OF_FLOW}
    rows = (await connection.execute(_FLOWS, {"queue": response.queue, **bounds})).all()
    flows = [_lined(row._asdict()) for row in rows]
    values = {name: getattr(response, name) for name in ("queue", "project", "priority", "rank", "position")}
    for row, flow in zip(rows, flows, strict=True):
        if (row.project, row.priority) == (response.project, response.priority):
            before = (await connection.execute(_BEFORE, {**values, "late": row.late})).one()
            virtual_time = before.virtual_time or 0.0
            ahead = before.number, before.in_files
            return place_of(response.position, flow.waiting.flow, ahead, flows, virtual_time)
    return None


def _lined(row: Mapping[str, Any]) -> LinedFlow:
    return LinedFlow(waiting_flow({**row, "responses": orjson.loads(row["first"])}), row["number"], row["in_files"])


async def _open_calls(connection: Connection, response_id: str) -> Sequence[str]:
    answered: set[str] = set()
    for row in await connection.execute(_STEPS, {"id": response_id, "most": MOST_CHUNKS}):
        if row.calls is not None:
            calls: dict[str, str] = orjson.loads(row.calls)
            return [name for index, name in calls.items() if index not in answered]
        if row.answered is None:
            return ()
        answered.add(row.answered)
    return ()
