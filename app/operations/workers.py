"""The workers, as operators see them: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.store.queue.roster import WorkerRow


class WorkerState(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    """It takes no responses now."""
    DRAINED = "drained"
    """An operator drained it, and it has nothing any more."""
    ABSENT = "absent"
    """Maintenance misses a sign of life of it."""
    LOST = "lost"
    """Its lease ran out."""


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """One worker in a list."""

    id: str
    name: str
    model: str
    queue: str
    host: str
    pid: int
    unit: str | None
    devices: str | None
    device: str | None
    version: str
    state: WorkerState
    slots: int
    running: int
    sent: int
    in_tools: int
    tokens_per_second: float
    lease_seconds: float
    started_at: datetime
    draining_since: datetime | None
    drain_reason: str | None


def seen(rows: Iterable[WorkerRow], tokens_per_second: Mapping[str, float]) -> list[SeenWorker]:
    return [
        SeenWorker(
            id=row.id,
            name=row.name,
            model=row.model,
            queue=row.queue,
            host=row.host,
            pid=row.pid,
            unit=row.unit,
            devices=row.devices,
            device=row.device,
            version=row.version,
            state=state_of(row),
            slots=row.slots,
            running=row.running,
            sent=row.sent,
            in_tools=row.in_tools,
            tokens_per_second=round(tokens_per_second.get(row.name, 0.0), 1),
            lease_seconds=round(row.lease_seconds, 1),
            started_at=row.started_at,
            draining_since=row.draining_since,
            drain_reason=row.drain_reason,
        )
        for row in rows
    ]


def state_of(row: WorkerRow) -> WorkerState:
    if row.lease_seconds <= 0:
        return WorkerState.LOST
    if row.is_absent:
        return WorkerState.ABSENT
    if row.draining_since is not None and row.running == row.sent == 0:
        return WorkerState.DRAINED
    return WorkerState.READY if row.slots and row.draining_since is None else WorkerState.DRAINING


LIVING = frozenset({WorkerState.READY, WorkerState.DRAINING, WorkerState.DRAINED})
"""The states of workers that show signs of life."""
