"""A project's limits as numbers, without clocks and without a store.

A limit on a minute is a bucket: it is full at first and refills evenly. A limit on a day starts anew at midnight UTC.
The other limits count what is there now. A request reserves the most that it may use; its end settles that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

ALL_MODELS = "*"
"""Stands for a model: the limit is on all models together."""
SERVICE_TIERS = ("flex", "default", "priority")
"""Service tiers, the best one last. A project has a best one."""
LINES_PART = 0.75
"""The part of a limit that lines of batches may take; the rest is left to their project's single requests."""
MINUTE_SECONDS = 60.0
DRAIN_SECONDS = 30.0
"""The time over which the speed of leaving a queue is averaged."""
MIN_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 120.0
"""A client is told to wait for no longer where waiting helps. The official clients give up beyond that."""
UNKNOWN_WAIT_SECONDS = 10.0
"""The wait if nothing has left the queue yet."""
_NO_DRAIN = 1e-9


class LimitKind(Enum):
    """The kinds of limits."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    READS_PER_MINUTE = "reads_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    QUEUED_RESPONSES = "queued_responses"
    """Responses that no worker has claimed yet."""
    QUEUED_BYTES = "queued_bytes"
    """The bytes of their requests, as they are stored."""
    UNFINISHED_RESPONSES = "unfinished_responses"
    """Responses that are queued or in progress."""
    STORED_BYTES = "stored_bytes"
    """Bytes of ended responses with their logs, of conversations, and of the requests of unfinished responses."""


CHARGED = frozenset({LimitKind.REQUESTS_PER_MINUTE, LimitKind.READS_PER_MINUTE})
"""Taken as soon as a request is there, and never given back; the others are reserved with the insert."""
PER_MINUTE = CHARGED | {LimitKind.TOKENS_PER_MINUTE}
TOKENS = frozenset({LimitKind.TOKENS_PER_MINUTE, LimitKind.TOKENS_PER_DAY})
RESPONSES = frozenset({LimitKind.QUEUED_RESPONSES, LimitKind.UNFINISHED_RESPONSES})


@dataclass(frozen=True, slots=True)
class Reservation:
    """The most that one response may use."""

    input_tokens: int
    output_tokens: int
    bytes: int
    """Size of its request, as it is stored."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


_AMOUNTS: Mapping[LimitKind, Callable[[Reservation], int]] = MappingProxyType(
    {
        LimitKind.REQUESTS_PER_MINUTE: lambda _: 0,  # charged before
        LimitKind.READS_PER_MINUTE: lambda _: 0,
        LimitKind.TOKENS_PER_MINUTE: lambda reserved: reserved.tokens,
        LimitKind.TOKENS_PER_DAY: lambda reserved: reserved.tokens,
        LimitKind.QUEUED_RESPONSES: lambda _: 1,
        LimitKind.QUEUED_BYTES: lambda reserved: reserved.bytes,
        LimitKind.UNFINISHED_RESPONSES: lambda _: 1,
        LimitKind.STORED_BYTES: lambda reserved: reserved.bytes,
    }
)


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit of a project, and how much of it is taken at one moment."""

    project: str
    model: str
    """Or ALL_MODELS."""
    kind: LimitKind
    value: int
    used: float
    drained_per_second: float = 0.0
    """How fast the queue has drained; 0: nothing has left it."""
    day_seconds: float = 0.0
    """Seconds until midnight UTC."""

    def covers(self, project: str, model: str) -> bool:
        return project == self.project and self.model in (ALL_MODELS, model)

    def has_room(self, reserved: Reservation) -> bool:
        amount = _AMOUNTS[self.kind](reserved)
        return not amount or self.used + amount <= self.value

    def has_room_for_line(self, reserved: Reservation) -> bool:
        """Whether the request, a line of a batch, has room, and leaves single requests their part.

        A line that needs more than the part of lines has room if nothing is taken. Of stored bytes lines may take all:
        time frees none, so a line that waited for them would wait until its batch's window ends.
        """
        if self.used <= 0 or self.kind is LimitKind.STORED_BYTES:
            return self.has_room(reserved)
        amount = _AMOUNTS[self.kind](reserved)
        return not amount or self.used + amount <= LINES_PART * self.value

    def is_too_small(self, reserved: Reservation) -> bool:
        """Whether it has no room for the request even if nothing of it is taken."""
        return _AMOUNTS[self.kind](reserved) > self.value

    def take(self, reserved: Reservation) -> LimitState:
        return replace(self, used=self.used + _AMOUNTS[self.kind](reserved))

    @property
    def remaining(self) -> int:
        return max(0, math.floor(self.value - self.used))

    @property
    def reset_seconds(self) -> float:
        """Seconds until nothing of the limit is taken any more."""
        if self.used <= 0:
            return 0.0
        return self.used * MINUTE_SECONDS / self.value if self.kind in PER_MINUTE else self.day_seconds

    def wait_seconds(self, reserved: Reservation) -> float | None:
        """Returns the time until the request, which has no room now, probably fits; None: waiting does not help."""
        amount = _AMOUNTS[self.kind](reserved)
        if self.is_too_small(reserved) or self.kind is LimitKind.STORED_BYTES:
            return None
        if self.kind is LimitKind.TOKENS_PER_DAY:
            return self.day_seconds
        missing = self.used + amount - self.value
        if self.kind in PER_MINUTE:
            return missing * MINUTE_SECONDS / self.value
        rate = self.drained_per_second
        estimated = missing / rate if rate > _NO_DRAIN else UNKNOWN_WAIT_SECONDS
        return min(max(estimated, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left to a project: of its tightest limit on requests, and on tokens; None: it has none."""

    requests: LimitState | None
    tokens: LimitState | None

    @classmethod
    def of(cls, states: Iterable[LimitState]) -> Allowance:
        found = list(states)
        requests = [state for state in found if state.kind is LimitKind.REQUESTS_PER_MINUTE]
        tokens = [state for state in found if state.kind in TOKENS]
        return cls(_tightest(requests), _tightest(tokens))


def _tightest(states: Sequence[LimitState]) -> LimitState | None:
    return min(states, key=lambda state: state.remaining, default=None)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A limit that a request does not fit into."""

    limit: LimitState
    allowance: Allowance
    requested: int
    wait_seconds: float | None
    """Seconds until it probably fits; None: waiting does not help."""


def admit(states: Sequence[LimitState], project: str, model: str, reserved: Reservation) -> Shortage | list[LimitState]:
    """Returns all `states` after the request has reserved, or why it may not: then nothing of any limit is taken.

    If several limits have no room, the shortage is that with the longest wait.
    """
    covering = [state for state in states if state.covers(project, model)]
    if short := [state for state in covering if not state.has_room(reserved)]:
        waits = [(state, state.wait_seconds(reserved)) for state in short]
        limit, wait = max(waits, key=lambda each: math.inf if each[1] is None else each[1])
        return Shortage(limit, Allowance.of(covering), _AMOUNTS[limit.kind](reserved), wait)
    return take_all(states, project, model, reserved)


def admit_line(
    states: Sequence[LimitState], project: str, model: str, reserved: Reservation
) -> list[LimitState] | None:
    """Returns all `states` after a line of a batch has reserved; None: it waits until more is free.

    Lines leave a part of each limit to single requests, so a batch of any length refuses none of them by its length.
    """
    if all(state.has_room_for_line(reserved) for state in states if state.covers(project, model)):
        return take_all(states, project, model, reserved)
    return None


def take_all(states: Iterable[LimitState], project: str, model: str, reserved: Reservation) -> list[LimitState]:
    """Returns all `states` after the request, which fits, has reserved."""
    return [state.take(reserved) if state.covers(project, model) else state for state in states]


def never_fits(states: Sequence[LimitState], project: str, model: str, reserved: Reservation) -> Shortage | None:
    """Returns the limit that is too small for the request, whatever is taken; None: it fits once there is room."""
    empty = [replace(state, used=0.0) for state in states if state.is_too_small(reserved)]
    found = admit(empty, project, model, reserved)
    return found if isinstance(found, Shortage) else None


def admit_stored(states: Sequence[LimitState], project: str, size: int) -> Shortage | None:
    """Returns why the project may not store so many bytes more outside of a response; None: it may."""
    stored = [state for state in states if state.kind is LimitKind.STORED_BYTES]
    after = admit(stored, project, ALL_MODELS, Reservation(0, 0, size))
    return after if isinstance(after, Shortage) else None


def charged(state: LimitState, requests: int) -> Iterator[LimitState | Shortage]:
    """Yields for each of so many requests what the limit, one of CHARGED, is after it, or why it has no room."""
    for _ in range(requests):
        if state.used + 1 <= state.value:
            state = replace(state, used=state.used + 1)
            yield state
        else:
            wait = (state.used + 1 - state.value) * MINUTE_SECONDS / state.value
            yield Shortage(state, Allowance(state, None), 1, wait)


def decayed(used: float, value: int, seconds: float) -> float:
    """Returns what is taken of a limit on a minute `seconds` later, if nothing more is reserved."""
    return max(0.0, used - value * max(0.0, seconds) / MINUTE_SECONDS)


def drain_after(drained_per_second: float, seconds: float, recent: float) -> float:
    """Returns the average speed of draining `seconds` later.

    `recent` is the sum of what has left since, each amount weighted by exp(-age / DRAIN_SECONDS).
    """
    later = drained_per_second * math.exp(-max(0.0, seconds) / DRAIN_SECONDS) + recent / DRAIN_SECONDS
    return later if later > _NO_DRAIN else 0.0


def unbiased_drain(drained_per_second: float, age_seconds: float) -> float:
    """Returns the average corrected for a limit that is younger than the time over which it is taken."""
    return drained_per_second / -math.expm1(-max(age_seconds, 0.1) / DRAIN_SECONDS)
