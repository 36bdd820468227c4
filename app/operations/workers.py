"""The workers, as operators see them: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from app.store.queue.roster import WorkerRow


@dataclass(frozen=True, slots=True)
class SeenWorker:
    """One worker in a list."""

    id: str
    name: str
    model: str
    queue: str
    host: str
    pid: int
    state: str
    """See `state_of`."""
    slots: int
    running: int
    sent: int
    in_tools: int
    tokens_per_second: float
    lease_seconds: float
    started_at: datetime


def seen(rows: Iterable[WorkerRow], tokens_per_second: Mapping[str, float]) -> list[SeenWorker]:
    return [
        SeenWorker(
            id=row.id,
            name=row.name,
            model=row.model,
            queue=row.queue,
            host=row.host,
            pid=row.pid,
            state=state_of(row),
            slots=row.slots,
            running=row.running,
            sent=row.sent,
            in_tools=row.in_tools,
            tokens_per_second=round(tokens_per_second.get(row.name, 0.0), 1),
            lease_seconds=round(row.lease_seconds, 1),
            started_at=row.started_at,
        )
        for row in rows
    ]


def state_of(row: WorkerRow) -> str:
    """`ready`; `draining`: it takes no responses now; `absent`: it shows no sign of life; `lost`: its lease ran out."""
    if row.lease_seconds <= 0:
        return "lost"
    if row.is_absent:
        return "absent"
    return "ready" if row.slots else "draining"
