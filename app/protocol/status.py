"""The life of a response, as a table.

    queued -> in_progress -> completed | incomplete | failed | cancelled
    queued -> cancelled | failed

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


_UNFINISHED = frozenset({Status.QUEUED, Status.IN_PROGRESS})

TRANSITIONS: dict[str, Transition] = {
    "claim": Transition(frozenset({Status.QUEUED}), Status.IN_PROGRESS),
    "take_over": Transition(frozenset({Status.IN_PROGRESS}), Status.IN_PROGRESS),
    "complete": Transition(frozenset({Status.IN_PROGRESS}), Status.COMPLETED),
    "cut": Transition(frozenset({Status.IN_PROGRESS}), Status.INCOMPLETE),
    "fail": Transition(_UNFINISHED, Status.FAILED),
    "cancel": Transition(_UNFINISHED, Status.CANCELLED),
}


def sources_of(target: Status) -> frozenset[Status]:
    """Returns every status that may change to `target`."""
    return frozenset().union(*(t.sources for t in TRANSITIONS.values() if t.target is target))
