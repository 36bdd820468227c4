"""The lives of a response and of a batch, as tables.

    queued -> in_progress -> completed | incomplete | failed | cancelled
    queued -> cancelled | failed

    validating -> failed | in_progress | cancelling
    in_progress -> finalizing | cancelling
    finalizing -> completed | expired
    cancelling -> cancelled

A status never goes back and a final one never changes. `TRANSITIONS` has every legal change. The store
builds the guards of claims and of endings from outside from it; a worker's append and its yield ask for `in_progress`
in their own statements. Tests compare the documentation with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    QUEUED = "queued"
    """Accepted and committed; a worker's claim changes it to in_progress."""
    IN_PROGRESS = "in_progress"
    """Claimed. No worker has it while it is released, or has yielded; then another attempt takes it over."""
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    """The model was cut by `max_output_tokens` or by its context length."""
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED})


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of status: from any of `sources` to `target`."""

    sources: frozenset[Status]
    target: Status


UNFINISHED = (Status.QUEUED, Status.IN_PROGRESS)

TRANSITIONS: dict[str, Transition] = {
    "claim": Transition(frozenset({Status.QUEUED}), Status.IN_PROGRESS),
    "take_over": Transition(frozenset({Status.IN_PROGRESS}), Status.IN_PROGRESS),
    "complete": Transition(frozenset({Status.IN_PROGRESS}), Status.COMPLETED),
    "cut": Transition(frozenset({Status.IN_PROGRESS}), Status.INCOMPLETE),
    "fail": Transition(frozenset(UNFINISHED), Status.FAILED),
    "cancel": Transition(frozenset(UNFINISHED), Status.CANCELLED),
}


class BatchStatus(Enum):
    VALIDATING = "validating"
    """The batch's file is read. None of its lines runs."""
    FAILED = "failed"
    """The batch's file has bad lines, or cannot be read: nothing has run."""
    IN_PROGRESS = "in_progress"
    """The batch's lines are inserted, and run."""
    FINALIZING = "finalizing"
    """All of its lines have ended, or its window is over: its files are written to their ends."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """The batch's window was over before all of its lines had ended."""
    CANCELLING = "cancelling"
    """The batch's lines are being cancelled."""
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return not BATCH_TRANSITIONS[self]


BATCH_TRANSITIONS: dict[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.VALIDATING: frozenset(
        {BatchStatus.FAILED, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING}
    ),
    BatchStatus.IN_PROGRESS: frozenset({BatchStatus.FINALIZING, BatchStatus.CANCELLING}),
    BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.EXPIRED}),
    BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED}),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.COMPLETED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}


def batch_sources_of(target: BatchStatus) -> frozenset[BatchStatus]:
    """Returns every state that may change to `target`."""
    return frozenset(source for source, targets in BATCH_TRANSITIONS.items() if target in targets)


BATCH_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
"""The states whose beginning is shown (`..._at`)."""
