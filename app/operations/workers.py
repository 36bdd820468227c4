"""The workers, as operators see them: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.store.queue.pace import Pace, tokens_per_second
from app.store.queue.worker_rows import WorkerRow


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

    row: WorkerRow
    state: WorkerState
    tokens_per_second: float
    pace_seconds: float
    """The time of which that is the mean; 0: nothing of it ended of late."""


def seen(rows: Sequence[WorkerRow], paces: Sequence[Pace]) -> list[SeenWorker]:
    rates, seconds = tokens_per_second(paces), {each.node: each.seconds for each in paces}
    return [
        SeenWorker(row, state_of(row), round(rates.get(row.name, 0.0), 1), round(seconds.get(row.name, 0.0), 1))
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
