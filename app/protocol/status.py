"""The life of a response, as a table.

    queued -> in_progress -> completed | incomplete | failed | cancelled
    queued -> cancelled | failed

A status never goes back and a final one never changes. `TRANSITIONS` is the whole truth: the store
builds the guard of every UPDATE from it, and the tests and the README's picture are checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    QUEUED = "queued"
    """Accepted and committed; a worker's claim moves it on."""
    IN_PROGRESS = "in_progress"
    """A worker owns it, or owned it and died: then another one takes it over."""
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    """The model was cut, by `max_output_tokens` or by its context."""
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED})


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow bundle: from any of `sources` to `target`."""

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
    """Every status from which `target` may be reached."""
    return frozenset().union(*(t.sources for t in TRANSITIONS.values() if t.target is target))
