"""What the rows say of the whole deployment at this moment: its responses, its workers, its logs.

Few statements, and no column that holds a prompt, an output or an event: the monitor's role may read what they do, and
nothing else (app/store/roles/rights.py). Their cost grows with what is unfinished, and not with what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from sqlalchemy import text

from app.store.database import Connection, Database
from app.store.tables import IS_SENT, IS_WAITING, LINES_QUEUE

MAX_LOGS = 5_000
"""Logs at the end of their retention that are looked at, of each kind."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A living worker."""

    model: str
    queue: str
    slots: int
    """0: it takes no responses now."""
    is_drained: bool
    """Whether operators have drained it."""
    has_work: bool
    """Whether it is drained, and has responses that have not ended."""
    lease_seconds_left: float


@dataclass(frozen=True, slots=True)
class Flow:
    """What waits of one queue, project and priority."""

    queue: str
    project: str
    priority: int
    count: int
    """Those that have yielded included."""
    oldest_seconds: float | None
    """Since the insert of the first one that was never claimed; None: all have yielded."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Responses of one queue and priority that were sent or claimed."""

    queue: str
    priority: int
    state: str
    """`sent`, `running`, `released` or `yielded`."""
    count: int
    in_line: int
    """Those of them that wait for a dispatch: yielded ones."""
    crashed: int
    """Those that have crashed since they made progress."""
    oldest_seconds: float
    """Since the insert of the first one."""


@dataclass(frozen=True, slots=True)
class LinesInFiles:
    """Lines of batches of one queue and project that are no responses yet."""

    queue: str
    project: str
    count: int


@dataclass(frozen=True, slots=True)
class FleetFacts:
    workers: Sequence[WorkerFacts]
    flows: Sequence[Flow]
    in_files: Sequence[LinesInFiles]
    begun: Sequence[Begun]
    reclaimable_bytes: int
    """Of logs at the end of their retention, up to MAX_LOGS of each kind."""
    pauses: Set[tuple[str, str | None]]
    """The queue and the project of each pause; None: all projects."""
    overdue_seconds: float
    """How long the first of them is at its end; 0: there is none."""

    def is_paused(self, queue: str, project: str) -> bool:
        return not self.pauses.isdisjoint({(queue, None), (queue, project)})


# The statistics of a table whose queue comes and goes are out of date: statements that read it must follow its indexes,
# and those whose order they ask for. To look among all that is queued for the first by another order, and sort it,
# takes a second of 100,000.
_FOLLOW_INDEXES = text(
    """
    SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
        set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
        set_config('jit', 'off', true)
    """
)
_WORKERS = text(
    f"""
    SELECT w.model, w.queue, w.slots, w.is_drained,
        extract(epoch FROM w.lease_until - now())::float8 AS lease_seconds_left,
        w.is_drained AND EXISTS (
            SELECT FROM responses r WHERE r.sent_to = w.node AND {IS_SENT.format("r.")} AND r.priority > 0
        ) AS has_work
    FROM (
        SELECT node, model, queue, slots, lease_until, absent_since,
            EXISTS (SELECT FROM drains d WHERE d.node = workers.node) AS is_drained
        FROM workers
    ) w
    WHERE w.lease_until > now() AND w.absent_since IS NULL
    """
)

_PAUSES = text("SELECT queue, project FROM pauses")

_W, _N = IS_WAITING.format("w."), IS_WAITING.format("n.")
_AGE = "extract(epoch FROM now() - {})::float8"
# `flow` steps from flow to flow over the index of what waits.
WAITING = f"""flow AS (
        (SELECT w.queue, w.project, w.priority FROM responses w WHERE {_W}
        ORDER BY w.queue, w.project, w.priority, coalesce(w.rank, w.position), w.position LIMIT 1)
        UNION ALL
        SELECT n.* FROM flow f CROSS JOIN LATERAL (
            SELECT n.queue, n.project, n.priority FROM responses n
            WHERE {_N} AND (n.queue, n.project, n.priority) > (f.queue, f.project, f.priority)
            ORDER BY n.queue, n.project, n.priority, coalesce(n.rank, n.position), n.position LIMIT 1
        ) n
    ), waiting AS (
        SELECT f.*, 'waiting' AS state,
            (SELECT count(*) FROM responses w WHERE {_W}
                AND w.queue = f.queue AND w.project = f.project AND w.priority = f.priority) AS number,
            (SELECT {_AGE.format("w.inserted_at")} FROM responses w WHERE {_W} AND w.status = 'queued'
                AND w.queue = f.queue AND w.project = f.project AND w.priority = f.priority
                ORDER BY w.queue, w.project, w.priority, coalesce(w.rank, w.position), w.position LIMIT 1) AS oldest
        FROM flow f
    )"""
"""What waits of each flow: how many, and how old the oldest is, as `waiting`."""
LINES_IN_FILES = f"""
    SELECT coalesce({LINES_QUEUE}, b.queue) AS queue, b.project, b.{{0}}, b.total - b.expanded AS lines
    FROM batches b WHERE b.status = 'in_progress' AND b.expanded < b.total
"""
"""Of each batch with a column of it: its lines that are no responses yet. Nobody may know their queue yet (NULL)."""
IN_FILES = f"""
    SELECT l.queue, l.project, l.key_id, sum(l.lines)::bigint AS number
    FROM ({LINES_IN_FILES.format("key_id")}) l WHERE l.queue IS NOT NULL GROUP BY 1, 2, 3
"""
"""Lines of batches that are no responses yet; of those whose queues nobody knows yet, none."""
HAS_WRITTEN = """
    coalesce(r.attempt = (
        SELECT c.attempt FROM chunks c WHERE c.response_id = r.id ORDER BY c.first DESC LIMIT 1
    ), false)
"""
"""As HAS_PROGRESSED of guards.py, of an attempt after another one, for a role that reads no tokens."""
_RESPONSES = text(
    f"""
    WITH RECURSIVE {WAITING}, begun AS (
        SELECT r.queue, r.priority, CASE WHEN r.status = 'queued' THEN 'sent' ELSE 'running' END AS state,
            false AS line, r.crashes > 0 AND NOT (r.worker IS NOT NULL AND {HAS_WRITTEN}) AS suspect, r.inserted_at
        FROM responses r WHERE {IS_SENT.format("r.")} AND (r.status = 'queued' OR r.worker IS NOT NULL)
        UNION ALL
        SELECT r.queue, r.priority, CASE WHEN r.yielded THEN 'yielded' ELSE 'released' END,
            r.yielded AND r.sent_at IS NULL, r.crashes > 0, r.inserted_at
        FROM responses r WHERE r.status = 'in_progress' AND r.worker IS NULL
    ), overdue AS (
        (SELECT r.log_bytes, r.finished_at FROM responses r WHERE r.finished_at IS NOT NULL AND r.log = 'live'
            AND r.finished_at < now() - make_interval(secs => :retention) ORDER BY r.finished_at LIMIT {MAX_LOGS})
        UNION ALL
        (SELECT r.log_bytes, r.finished_at FROM responses r WHERE r.log = 'merged'
            AND r.finished_at < now() - make_interval(secs => :retention) ORDER BY r.finished_at LIMIT {MAX_LOGS})
    )
    SELECT queue, project, priority, state, number, 0::bigint AS line, 0::bigint AS crashed, oldest FROM waiting
    UNION ALL
    SELECT queue, NULL, priority, state, count(*), count(*) FILTER (WHERE line), count(*) FILTER (WHERE suspect),
        max({_AGE.format("inserted_at")}) FROM begun GROUP BY 1, 3, 4
    UNION ALL
    SELECT queue, project, 0, 'in_files', number, 0, 0, NULL FROM ({IN_FILES}) f
    UNION ALL
    SELECT '', NULL, 0, 'overdue', coalesce(sum(log_bytes), 0)::bigint, 0, 0,
        coalesce({_AGE.format("min(finished_at)")} - CAST(:retention AS float8), 0) FROM overdue
    """
)


async def follow_indexes(connection: Connection) -> None:
    """Holds for the statements that follow in the same transaction: Postgres plans each before it runs."""
    await connection.execute(_FOLLOW_INDEXES)


async def read(db: Database, retention_seconds: float) -> FleetFacts:
    """All of it; the responses as one snapshot has them. Raises StoreUnavailable."""
    async with db.begin() as connection:
        await follow_indexes(connection)
        workers = [WorkerFacts(**row._mapping) for row in await connection.execute(_WORKERS)]
        paused = {(row.queue, row.project) for row in await connection.execute(_PAUSES)}
        rows = list(await connection.execute(_RESPONSES, {"retention": retention_seconds}))
    (overdue,) = (row for row in rows if row.state == "overdue")
    return FleetFacts(
        workers,
        [Flow(r.queue, r.project, r.priority, r.number, r.oldest) for r in rows if r.state == "waiting"],
        [LinesInFiles(r.queue, r.project, r.number) for r in rows if r.state == "in_files"],
        [
            Begun(r.queue, r.priority, r.state, r.number, r.line, r.crashed, r.oldest)
            for r in rows
            if r.state in ("sent", "running", "released", "yielded")
        ],
        overdue.number,
        paused,
        max(overdue.oldest, 0.0),
    )
