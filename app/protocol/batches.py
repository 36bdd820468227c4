"""The life of a batch, as a table.

    validating -> failed | in_progress | cancelling
    in_progress -> finalizing | cancelling
    finalizing -> completed | expired
    cancelling -> cancelled

A state never goes back, and a final one never changes.
"""

from __future__ import annotations

from enum import Enum


class BatchStatus(Enum):
    VALIDATING = "validating"
    """Its file is read. None of its lines runs."""
    FAILED = "failed"
    """Its file has bad lines, or cannot be read: nothing has run."""
    IN_PROGRESS = "in_progress"
    """Its lines are inserted, and run."""
    FINALIZING = "finalizing"
    """All of its lines have ended, or its window is over: its files are written to their ends."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """Its window was over before all of its lines had ended."""
    CANCELLING = "cancelling"
    """Its lines are being cancelled."""
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: dict[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.VALIDATING: frozenset({BatchStatus.FAILED, BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING}),
    BatchStatus.IN_PROGRESS: frozenset({BatchStatus.FINALIZING, BatchStatus.CANCELLING}),
    BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.EXPIRED}),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED}),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.COMPLETED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}


def sources_of(target: BatchStatus) -> frozenset[BatchStatus]:
    """Returns every state that may change to `target`."""
    return frozenset(source for source, targets in TRANSITIONS.items() if target in targets)


TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
"""The states whose beginning is shown (`..._at`)."""
