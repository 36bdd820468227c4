"""The workers one by one, and what each has: for operators, who also want to see those whose lease ran out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from app.store.database import Connection, Database
from app.store.queue import pace
from app.store.queue.fleet import follow_indexes
from app.store.queue.pace import Pace


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered worker. Dead ones stay until maintenance removes them."""

    id: str
    name: str
    """Of its process, by which messages find it."""
    model: str
    queue: str
    host: str
    pid: int
    started_at: datetime
    lease_seconds: float
    """Until its lease runs out, unless it is renewed; negative: since it ran out."""
    is_absent: bool
    """Whether maintenance misses its lock, or its heartbeats."""
    unit: str | None
    devices: str | None
    device: str | None
    version: str
    draining_since: datetime | None
    """Since an operator drained it."""
    drain_reason: str | None
    layout: int
    slots: int
    """0: it takes none now."""
    running: int
    sent: int
    """Sent to it, and not claimed yet."""
    in_tools: int
    """Running ones that wait for their tools, and take no slot."""

    @property
    def ahead(self) -> int:
        """Running ones that wait in it for a slot."""
        return max(0, self.running - self.in_tools - self.slots) if self.slots else 0

    @property
    def in_slots(self) -> int:
        """Running ones that its engine has."""
        return max(0, self.running - self.in_tools - self.ahead)


_WORKERS = text(
    """
    SELECT w.id, w.node AS name, w.model, w.queue, w.host, w.pid, w.started_at, w.layout, w.slots,
        w.unit, w.devices, w.device, w.version, d.since AS draining_since, d.reason AS drain_reason,
        extract(epoch FROM w.lease_until - now())::float8 AS lease_seconds, w.absent_since IS NOT NULL AS is_absent,
        h.running, h.sent, w.away + w.foreground_away AS in_tools
    FROM workers w LEFT JOIN drains d ON d.node = w.node CROSS JOIN LATERAL (
        SELECT count(r.worker) AS running, count(*) FILTER (WHERE r.worker IS NULL) AS sent
        FROM responses r
        WHERE r.sent_to = w.node AND r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.priority > 0
    ) h
    ORDER BY w.model, w.node, w.started_at
    """
)


async def read(db: Database) -> tuple[Sequence[WorkerRow], Sequence[Pace]]:
    """All workers, and how fast they are. Raises StoreUnavailable."""
    async with db.begin() as connection:
        return await read_workers(connection), await pace.read(connection)


async def read_workers(connection: Connection) -> Sequence[WorkerRow]:
    """The statements that follow in the same transaction follow indexes, too."""
    await follow_indexes(connection)
    return [WorkerRow(**row._mapping) for row in await connection.execute(_WORKERS)]
