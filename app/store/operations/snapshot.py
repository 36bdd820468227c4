"""The read model of operators: what the rows say of the whole deployment at one moment.

Metrics of the fleet, `status`, `why`, the queue and the workers are made of it, and of nothing else. It has no prompt,
no output, no event and no key: the monitor's role may read all of it (app/store/roles/rights.py). Its cost grows with
what is unfinished, not with what is stored.

The statistics of a table whose queue comes and goes are out of date. So no statement asks for a set of unknown size:
each steps over an index from one flow or worker to the next, by an ORDER BY with the index's columns and LIMIT 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import text

from app.protocol.limits import CHARGED, PER_MINUTE, LimitKind, LimitState, decayed
from app.scheduling.loads import Load
from app.store.database import Connection, Database
from app.store.guards import IS_SUSPECT, OVERDUE, HandOver
from app.store.layout import LAYOUT
from app.store.operations.listing import begun
from app.store.queue import pauses
from app.store.queue.facts import load_of
from app.store.queue.pauses import PauseRow

MAX_LOGS = 5_000
"""Logs at the end of their retention that are looked at, of each kind."""
PACE_SECONDS = 300.0
"""How far back the pace looks."""
DEATH_SECONDS = 600.0
"""How far back deaths are looked for."""
MAX_ENDED = 1_000
"""Responses that ended of late that are looked at, of those that are stored and of the others: the newest."""
MAX_ENDED_READ = 10 * MAX_ENDED
"""Most rows read of each kind, those without a worker included: a bulk cancel ends 100,000 of them at once."""
MAX_NAMED = 20
"""Workers that died, and suspects."""
MAX_BAD_ENDPOINTS = 20
"""Webhook endpoints that are bad, those that fail for longest first."""
FAILING_SECONDS = 3600.0
"""For how long one fails that is bad."""
DISABLED_DAYS = 7
"""For how long one counts as bad that was disabled."""
MAX_LIMITS_READ = 100
"""Limits that are read, those with the most taken first."""
FULL_PART = 0.99
"""From so much of it on a limit counts as full: hardly a request fits."""


class WorkerState(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    """The worker takes no responses now."""
    DRAINED = "drained"
    """An operator drained it, and it has nothing any more."""
    ABSENT = "absent"
    """Maintenance misses a sign of life of it."""
    LOST = "lost"
    """The worker's lease ran out."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A registered worker. Dead ones stay until maintenance removes them."""

    id: str
    name: str
    """Node of its process, by which messages find it."""
    model: str
    queue: str
    host: str
    pid: int
    started_at: datetime
    lease_seconds: float
    """Seconds until the lease runs out, unless it is renewed; negative: since it ran out."""
    is_absent: bool
    """Whether maintenance misses its lock, or its heartbeats."""
    unit: str | None
    devices: str | None
    device: str | None
    version: str
    draining_since: datetime | None
    """When an operator drained it."""
    drain_reason: str | None
    layout: int
    slots: int
    """0: it takes none now."""
    running: int
    sent: int
    """Sent to it, and not claimed yet."""
    in_tools: int
    """Running ones that wait for their tools, and take no slot."""
    load: Load | None = None
    """The load that dispatches see; None: they send the worker nothing."""

    @property
    def ahead(self) -> int:
        """Running ones that wait in it for a slot."""
        return max(0, self.running - self.in_tools - self.slots) if self.slots else 0

    @property
    def in_slots(self) -> int:
        """Running ones that its engine has."""
        return max(0, self.running - self.in_tools - self.ahead)

    @property
    def state(self) -> WorkerState:
        if self.lease_seconds <= 0:
            return WorkerState.LOST
        if self.is_absent:
            return WorkerState.ABSENT
        if self.draining_since is not None and self.running == self.sent == 0:
            return WorkerState.DRAINED
        return WorkerState.READY if self.slots and self.draining_since is None else WorkerState.DRAINING

    @property
    def is_living(self) -> bool:
        """Whether it shows signs of life."""
        return self.state not in (WorkerState.ABSENT, WorkerState.LOST)

    @property
    def is_ready(self) -> bool:
        return self.state is WorkerState.READY


@dataclass(frozen=True, slots=True)
class Count:
    """Unfinished work of one queue, project, key and priority in one state."""

    queue: str
    project: str
    key_id: str | None
    """None: it was asked for without a key, or waits and keys were not looked at."""
    priority: int
    state: str
    """`waiting` (in line, those that yielded included), `in_files` (lines of batches that are no responses yet),
    `sent`, `running`, `yielded` or `released` (a worker died or handed them over, and none has them yet)."""
    number: int
    in_line: int = 0
    """Yielded responses that wait for a dispatch: they are among `waiting`, too."""
    suspects: int = 0
    """Responses that have crashed since they made progress."""
    oldest_seconds: float | None = None
    """Seconds since the insert of the first one, of `waiting` the first that was never claimed; None: there is none."""


@dataclass(frozen=True, slots=True)
class Late:
    """How late maintenance is, in seconds: 0 where nothing is late."""

    usage: float = 0.0
    """Seconds since the oldest note of usage that is not in the ledger yet."""
    deadlines: float = 0.0
    """Seconds since the oldest deadline that has passed."""
    logs: float = 0.0
    """Seconds since the end of the retention of the oldest log that is not deleted."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The responses of one worker of a queue that ended within `seconds`."""

    queue: str
    node: str
    ended: int
    output_tokens: float
    """Tokens of these responses within that time, taken for evenly spread over their run."""
    seconds: float
    """Time since the first of these responses began, and PACE_SECONDS at most."""


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that died while it ran responses: their history tells, its own row is gone."""

    queue: str
    node: str
    at: datetime
    responses: int
    """Responses that it ran; some may be forgotten."""
    waiting: int
    """How many of them no other worker has yet."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A response that has crashed since it made progress."""

    queue: str
    id: str
    crashes: int


@dataclass(frozen=True, slots=True)
class BadEndpoint:
    """A webhook endpoint that has failed for a while, or that was disabled for it of late."""

    id: str
    project: str
    failing_since: datetime
    failing_seconds: float
    is_disabled: bool


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Webhook endpoints, and how late their deliveries are."""

    healthy: int = 0
    failing: int = 0
    """Endpoints that have failed since their last success."""
    disabled: int = 0
    late_seconds: float = 0.0
    """Time since the oldest delivery to a healthy endpoint was due."""
    bad: Sequence[BadEndpoint] = ()
    """Endpoints that fail, for longest first."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole deployment at one moment."""

    workers: Sequence[Worker] = ()
    counts: Sequence[Count] = ()
    pauses: Sequence[PauseRow] = ()
    late: Late = field(default_factory=Late)
    reclaimable_bytes: int = 0
    """Size of logs at the end of their retention, up to MAX_LOGS of each kind."""
    paces: Sequence[Pace] = ()
    deaths: Sequence[Death] = ()
    """The newest first."""
    suspects: Sequence[Suspect] = ()
    """Suspects, those with most crashes first."""
    limits: Sequence[LimitState] = ()
    """Limits of which hardly anything is left. One of requests a minute was used up within the last minute: its bucket
    gets room for one request every few seconds, and refuses all others between two of them."""
    webhooks: Webhooks = field(default_factory=Webhooks)

    def is_paused(self, queue: str, project: str | None) -> bool:
        """Whether operators paused this project in the queue; None: all of the queue."""
        return any(each.queue == queue and each.project in (None, project) for each in self.pauses)

    def workers_of(self, queue: str) -> list[Worker]:
        return [each for each in self.workers if each.queue == queue]


# -- statements --------------------------------------------------------------------------------------------------------

_BEGIN = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
# Compiling such a statement takes longer than its run.
_NO_JIT = "SET LOCAL jit = off"
_AGE = "extract(epoch FROM now() - {})::float8"
_ORDER = "w.queue, w.project, w.priority, w.rank, w.position"

_WORKERS = text(
    """
    SELECT w.id, w.node AS name, w.model, w.queue, w.host, w.pid, w.started_at, w.layout, w.slots,
        w.unit, w.devices, w.device, w.version, d.since AS draining_since, d.reason AS drain_reason,
        extract(epoch FROM w.lease_until - now())::float8 AS lease_seconds, w.absent_since IS NOT NULL AS is_absent,
        h.running, h.sent, w.away + w.foreground_away AS in_tools,
        l.node IS NOT NULL AS is_offered, l.answers, l.foreground, l.background
    FROM workers w LEFT JOIN drains d ON d.node = w.node LEFT JOIN worker_loads l ON l.node = w.node
    CROSS JOIN LATERAL (
        SELECT count(r.worker) AS running, count(*) FILTER (WHERE r.worker IS NULL) AS sent
        FROM responses r
        WHERE r.sent_to = w.node AND r.sent_at IS NOT NULL AND r.finished_at IS NULL
    ) h
    ORDER BY w.model, w.node, w.started_at
    """
)
_HAS_WRITTEN = """
    coalesce(r.attempt = (
        SELECT c.attempt FROM chunks c WHERE c.response_id = r.id ORDER BY c.first DESC LIMIT 1
    ), false)
"""
"""As the view `progress`, of an attempt after another one, for a role that reads no tokens."""
_R = "r.id, r.queue, r.project, r.priority, r.key_id, r.status, r.worker, r.attempt, r.crashes, r.yielded, r.sent_at"
_R += ", r.inserted_at, r.history"
_BEGUN = begun(_R)
_SUSPECT = f"({IS_SUSPECT.format('r.')} AND NOT (r.worker IS NOT NULL AND {_HAS_WRITTEN}))"
_OF_FLOW = "FROM waiting_responses w WHERE w.queue = f.queue AND w.project = f.project AND w.priority = f.priority"
# Of those that were never claimed; the condition of their status would bring other indexes up.
_IS_NEW = """
    w.position NOT IN (
        SELECT r.position FROM responses r WHERE r.status = 'in_progress' AND r.worker IS NULL AND r.yielded
    )
"""
_BY_FLOW = f"""
    SELECT CAST(NULL AS text) AS key_id, count(*) AS number, (
        SELECT w.rank {_OF_FLOW} AND {_IS_NEW} ORDER BY {_ORDER} LIMIT 1
    ) AS first {_OF_FLOW}
"""
_BY_KEY = f"""
    SELECT w.key_id, count(*) AS number, min(w.rank) FILTER (WHERE {_IS_NEW}) AS first
    {_OF_FLOW} GROUP BY w.key_id
"""
# `flow` steps from flow to flow over the index of what waits, which has the keys, too.
_UNFINISHED = f"""
    WITH RECURSIVE flow AS (
        (SELECT w.queue, w.project, w.priority FROM waiting_responses w ORDER BY {_ORDER} LIMIT 1)
        UNION ALL
        SELECT n.* FROM flow f CROSS JOIN LATERAL (
            SELECT w.queue, w.project, w.priority FROM waiting_responses w
            WHERE (w.queue, w.project, w.priority) > (f.queue, f.project, f.priority)
            ORDER BY {_ORDER} LIMIT 1
        ) n
    ), {_BEGUN}
    SELECT f.queue, f.project, k.key_id, f.priority, 'waiting' AS state, k.number, 0::bigint AS in_line,
        0::bigint AS suspects, (
            SELECT {_AGE.format("w.inserted_at")} {_OF_FLOW}
                AND w.status = 'queued' AND w.rank = k.first ORDER BY {_ORDER} LIMIT 1
        ) AS oldest_seconds
    FROM flow f CROSS JOIN LATERAL ({{}}) k
    UNION ALL
    SELECT r.queue, r.project, r.key_id, r.priority, CASE WHEN r.worker IS NOT NULL THEN 'running'
            WHEN r.status = 'queued' THEN 'sent' WHEN r.yielded THEN 'yielded' ELSE 'released' END AS state,
        count(*), count(*) FILTER (WHERE r.yielded AND r.worker IS NULL AND r.sent_at IS NULL),
        count(*) FILTER (WHERE {_SUSPECT}), max({_AGE.format("r.inserted_at")})
    FROM begun r GROUP BY 1, 2, 3, 4, 5
    UNION ALL
    SELECT l.queue, l.project, l.key_id, 0, 'in_files', sum(l.lines)::bigint, 0, 0, NULL
    FROM (
        SELECT b.project, b.key_id, b.total - b.expanded AS lines, coalesce(
            (SELECT r.queue FROM responses r WHERE r.batch_id = b.id ORDER BY r.batch_line DESC LIMIT 1), b.queue
        ) AS queue
        FROM batches b WHERE b.status = 'in_progress' AND b.expanded < b.total
    ) l WHERE l.queue IS NOT NULL GROUP BY 1, 2, 3
"""
_OF_FLOWS, _OF_KEYS = text(_UNFINISHED.format(_BY_FLOW)), text(_UNFINISHED.format(_BY_KEY))
_OVERDUE = """
    SELECT r.log_bytes, r.finished_at FROM responses r
    WHERE {} AND r.finished_at < now() - make_interval(secs => :retention) ORDER BY r.finished_at LIMIT :most_logs
"""
_FIRST_OVERDUE = ", ".join(
    f"(SELECT r.{deadline} FROM responses r WHERE {overdue} ORDER BY r.{deadline} LIMIT 1)"
    for deadline, overdue in OVERDUE.items()
)
_LATE = text(
    f"""
    SELECT greatest({_AGE.format("(SELECT e.at FROM usage_entries e ORDER BY e.id LIMIT 1)")}, 0) AS usage,
        greatest({_AGE.format(f"least({_FIRST_OVERDUE})")}, 0) AS deadlines,
        greatest({_AGE.format("o.first")} - CAST(:retention AS float8), 0) AS logs, o.bytes
    FROM (
        SELECT min(finished_at) AS first, coalesce(sum(log_bytes), 0)::bigint AS bytes FROM (
            ({_OVERDUE.format("r.finished_at IS NOT NULL AND r.log = 'live'")})
            UNION ALL ({_OVERDUE.format("r.log = 'merged'")})
        ) o
    ) o
    """
)


def _latest(columns: str, kind: str) -> str:
    return f"""
        SELECT {columns} FROM responses r
        WHERE r.finished_at IS NOT NULL AND {kind} AND r.finished_at > now() - make_interval(secs => :seconds)
        ORDER BY r.finished_at DESC"""


def _ended(kind: str) -> str:
    columns = "r.queue, r.sent_to, r.started_at, r.finished_at, r.usage"
    return f"""
        SELECT queue, sent_to, started_at, finished_at, coalesce(CAST(usage->>'output_tokens' AS float8), 0) AS tokens
        FROM ({_latest(columns, kind)} LIMIT :most_read) latest
        WHERE started_at IS NOT NULL AND sent_to IS NOT NULL
        LIMIT :most"""


def _since(kind: str, ended: str) -> str:
    return f"""
        (SELECT CASE WHEN count(*) >= :most THEN min(finished_at)
            ELSE ({_latest("r.finished_at", kind)} OFFSET :most_read LIMIT 1) END FROM {ended})"""


_PACE = text(
    f"""
    WITH stored AS MATERIALIZED ({_ended("r.store")}), unstored AS MATERIALIZED ({_ended("NOT r.store")}),
    since AS (
        SELECT greatest(now() - make_interval(secs => :seconds),
            {_since("r.store", "stored")}, {_since("NOT r.store", "unstored")}) AS at
    )
    SELECT e.queue, e.sent_to AS node, count(*) AS ended,
        sum(e.tokens * least(1, extract(epoch FROM e.finished_at - greatest(e.started_at, s.at))
            / greatest(extract(epoch FROM e.finished_at - e.started_at), 0.001)))::float8 AS output_tokens,
        extract(epoch FROM now() - greatest(max(s.at), min(e.started_at)))::float8 AS seconds
    FROM since s CROSS JOIN (SELECT * FROM stored UNION ALL SELECT * FROM unstored) e
    WHERE e.finished_at > s.at
    GROUP BY e.queue, e.sent_to
    """
)
_DEATHS = text(
    f"""
    WITH RECURSIVE {_BEGUN}
    SELECT h.queue, h.death->>'worker' AS node, max(CAST(h.death->>'to' AS timestamptz)) AS at,
        count(DISTINCT h.id) AS responses, count(*) FILTER (WHERE h.waits AND h.is_last) AS waiting
    FROM (
        SELECT b.queue, b.id, b.waits, each AS death, each = b.history -> -1 AS is_last
        FROM (
            SELECT r.queue, r.id, r.history, r.worker IS NULL AS waits FROM begun r WHERE r.status = 'in_progress'
            UNION ALL ({_latest("r.queue, r.id, r.history, false", "r.store")} LIMIT :most)
            UNION ALL ({_latest("r.queue, r.id, r.history, false", "NOT r.store")} LIMIT :most)
        ) b CROSS JOIN LATERAL jsonb_array_elements(b.history) AS each
        WHERE b.history IS NOT NULL
    ) h
    WHERE h.death->>'how' = '{HandOver.CRASHED.value}'
        AND CAST(h.death->>'to' AS timestamptz) > now() - make_interval(secs => :seconds)
    GROUP BY h.queue, h.death->>'worker' ORDER BY at DESC LIMIT {MAX_NAMED}
    """
)
_SUSPECTS = text(
    f"""
    WITH RECURSIVE {_BEGUN}
    SELECT r.queue, r.id, r.crashes FROM begun r WHERE {_SUSPECT} ORDER BY r.crashes DESC, r.id LIMIT {MAX_NAMED}
    """
)
_CHARGED = ", ".join(sorted(f"'{kind.value}'" for kind in CHARGED))
# What has ended since is given back within seconds, when maintenance adds it up; nothing is written here.
_NEARLY_FULL = text(
    f"""
    SELECT l.project, l.model, l.kind, l.value,
        CASE WHEN l.kind = 'stored_bytes' THEN l.used + p.stored_bytes ELSE l.used END AS used,
        greatest(0, extract(epoch FROM now() - l.as_of))::float8 AS idle_seconds,
        extract(epoch FROM date_trunc('day', now(), 'UTC') + interval '1 day' - now())::float8 AS day_seconds
    FROM limits l JOIN projects p ON p.id = l.project
    WHERE CASE l.kind
        WHEN 'stored_bytes' THEN l.used + p.stored_bytes
        WHEN 'tokens_per_day' THEN CASE WHEN l.as_of < date_trunc('day', now(), 'UTC') THEN 0 ELSE l.used END
        ELSE CASE WHEN l.kind LIKE '%\\_per\\_minute' AND l.as_of < now() - interval '1 minute' THEN 0 ELSE l.used END
    END >= CASE WHEN l.kind IN ({_CHARGED}) THEN l.value - 0.999 ELSE {FULL_PART} * l.value END
    ORDER BY l.used / l.value DESC, l.project, l.model, l.kind LIMIT {MAX_LIMITS_READ}
    """
)


_WEBHOOKS = text(
    f"""
    SELECT count(*) FILTER (WHERE e.failing_since IS NULL AND e.disabled_at IS NULL) AS healthy,
        count(*) FILTER (WHERE e.failing_since IS NOT NULL AND e.disabled_at IS NULL) AS failing,
        count(e.disabled_at) AS disabled,
        coalesce(max({_AGE.format("f.due_at")}) FILTER (WHERE f.due_at < now()), 0) AS late_seconds
    FROM webhook_endpoints e LEFT JOIN LATERAL (
        SELECT d.due_at FROM webhook_deliveries d
        WHERE d.endpoint = e.id AND e.failing_since IS NULL AND e.disabled_at IS NULL AND d.due_at IS NOT NULL
        ORDER BY d.due_at LIMIT 1
    ) f ON true
    """
)
_BAD_ENDPOINTS = text(
    f"""
    SELECT e.id, e.project, e.failing_since, {_AGE.format("e.failing_since")} AS failing_seconds,
        e.disabled_at IS NOT NULL AS is_disabled
    FROM webhook_endpoints e
    WHERE e.failing_since < now() - make_interval(secs => {FAILING_SECONDS}) AND (e.disabled_at IS NULL
        OR e.disabled_reason = 'failing' AND e.disabled_at > now() - make_interval(days => {DISABLED_DAYS}))
    ORDER BY e.failing_since, e.id LIMIT {MAX_BAD_ENDPOINTS}
    """
)


async def read(db: Database, retention_seconds: float, *, by_key: bool = False) -> Snapshot:
    """All of it, as one snapshot of Postgres has it. Logs are kept for `retention_seconds`. Raises StoreUnavailable.

    `by_key`: what waits is counted for each key, which takes twice as long.
    """
    async with db.begin() as connection:
        for statement in (_BEGIN, _NO_JIT):
            await connection.execute(text(statement))
        workers = [_worker(row._asdict()) for row in await connection.execute(_WORKERS)]
        counts = [Count(**row._mapping) for row in await connection.execute(_OF_KEYS if by_key else _OF_FLOWS)]
        logs = {"retention": retention_seconds, "most_logs": MAX_LOGS}
        late = (await connection.execute(_LATE, logs)).one()
        pace = {"seconds": PACE_SECONDS, "most": MAX_ENDED, "most_read": MAX_ENDED_READ}
        died = {"seconds": DEATH_SECONDS, "most": MAX_ENDED}
        return Snapshot(
            workers,
            counts,
            await pauses.read(connection),
            Late(late.usage or 0.0, late.deadlines or 0.0, late.logs or 0.0),
            late.bytes,
            [Pace(**row._mapping) for row in await connection.execute(_PACE, pace)],
            [Death(**row._mapping) for row in await connection.execute(_DEATHS, died)],
            [Suspect(**row._mapping) for row in await connection.execute(_SUSPECTS)],
            await _full_limits(connection),
            await _webhooks(connection),
        )


def _worker(row: dict[str, Any]) -> Worker:
    loads = {name: row.pop(name) for name in ("answers", "foreground", "background")}
    is_offered = row.pop("is_offered") and row["layout"] >= LAYOUT
    load = load_of({"node": row["name"], "slots": row["slots"], **loads}) if is_offered else None
    return Worker(**row, load=load)


async def _webhooks(connection: Connection) -> Webhooks:
    counted = (await connection.execute(_WEBHOOKS)).one()
    bad = [BadEndpoint(**row._mapping) for row in await connection.execute(_BAD_ENDPOINTS)]
    return Webhooks(**counted._mapping, bad=bad)


async def _full_limits(connection: Connection) -> Sequence[LimitState]:
    found = []
    for row in await connection.execute(_NEARLY_FULL):
        kind = LimitKind(row.kind)
        used = decayed(row.used, row.value, row.idle_seconds) if kind in PER_MINUTE else row.used
        state = LimitState(row.project, row.model, kind, row.value, used, day_seconds=row.day_seconds)
        if kind in CHARGED or used >= FULL_PART * row.value or state.remaining < 1:
            found.append(state)
    return found
