"""The order of a queue: start-time fair queueing.

A flow is what waits of one queue, project and priority. Its tag is where its last response ends on the queue's virtual
time, which moves by cost / weight. The next response of a flow starts at its tag, or now if that has passed; those with
the smallest starts are sent first. So flows get shares by their weights, a flow that is alone gets everything, and one
that was idle has no credit. Virtual time is the start of what was sent last.

The flows of one project share the weight of the best tier among them: several classes get no more than one.

Work in windows comes after all others, unless it has risen (windows.py): then it has a part of its project's share.
Within its flow the nearest deadline comes first, but what cannot be in time any more comes last.

Costs are estimates. A flow whose estimates are wrong in the same way each time is charged by its scale.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from app.queue.message import FOREGROUND, WEIGHTS, Priority
from app.scheduling.placement import Candidate

MAX_CHARGE = 2**31 - 1
DEFAULT_WEIGHT = 1.0
"""Weight of a priority that this version does not know."""
TIER_PART = 2
"""A tier weighs as much as its foreground: so many times its background (`WEIGHTS`)."""
WINDOW_WEIGHT = WEIGHTS[Priority.FOREGROUND]
"""Weight of a project that has work in windows alone: its tier is `default`."""
MAX_WINDOW_PART = 7 / 8
"""The most of its project's share that work in windows takes while other work of the project waits."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The responses of one queue that share a place in line."""

    project: str
    priority: int
    project_weight: float = 1.0

    @property
    def is_foreground(self) -> bool:
        return self.priority in FOREGROUND

    @property
    def weight(self) -> float:
        return weight_of(self.priority) * self.project_weight


@dataclass(frozen=True, slots=True)
class WaitingResponse:
    candidate: Candidate
    position: int
    """Place by which the responses of a flow are in line, unless they have a rank."""
    cost: int
    """The tokens that it will take, as far as one can know."""
    is_charged: bool = False
    """Whether it was sent before, and lost, or has yielded."""
    rank: int = 0
    """Goes before the position: the deadline of work in windows, or what a continuation has in common."""
    seconds_left: float = math.inf
    """Seconds until it is due."""


@dataclass(frozen=True, slots=True)
class WaitingFlow:
    flow: Flow
    responses: Sequence[WaitingResponse]
    """The first of those that wait, in line."""
    beside: Sequence[int]
    """The priorities of all flows of the project that wait, this one included."""
    tag: float | None = None
    """None: it is new."""
    scale: float = 1.0
    part: float = 0.0
    """What the project's work in windows takes of its share (windows.py); 0: it waits until nothing else does."""
    lead_seconds: float = 0.0
    """What is due so soon cannot be in time any more."""

    @property
    def in_windows(self) -> bool:
        return self.flow.priority == Priority.WINDOW

    @property
    def step(self) -> float:
        """How far a token moves its tag."""
        others = [each for each in self.beside if each != Priority.WINDOW]
        windows = (min(self.part, MAX_WINDOW_PART) if others else self.part) * WINDOW_WEIGHT
        if self.in_windows:
            return 1 / (windows or WINDOW_WEIGHT) / self.flow.project_weight
        tier = max(map(tier_of, others))
        rest = min(tier, max(tier, WINDOW_WEIGHT) - windows)
        return sum(map(weight_of, others)) / rest / self.flow.weight

    def in_line(self) -> Sequence[WaitingResponse]:
        """Its responses in their order."""
        if not self.in_windows:
            return self.responses
        lead = self.lead_seconds
        return sorted(self.responses, key=lambda each: (each.seconds_left <= lead, each.rank, each.position))

    def tagged(self, virtual_time: float) -> Iterator[Tagged]:
        start = virtual_time if self.tag is None else max(self.tag, virtual_time)
        was_idle = self.tag is None or self.tag < virtual_time
        before, behind, step, is_last = 0, 0, self.step, self.in_windows and not self.part
        for number, response in enumerate(self.in_line(), 1):
            charge = 0 if response.is_charged else min(math.ceil(response.cost * self.scale), MAX_CHARGE)
            at = start + before * step
            behind = max(behind, response.position)  # Within the flow the rank decides.
            order = is_last, at, not (was_idle and number == 1), behind
            finish = at + charge * step
            yield Tagged(order, response.position, number, charge, at, finish, step, self.flow, response.candidate)
            before += charge


@dataclass(frozen=True, slots=True)
class Tagged:
    """A response and its tags."""

    order: tuple[bool, float, bool, int]
    """By its start; what waits until nothing else does is last. Of flows with the same tag, one that was idle goes
    first. Where costs are equal all flows have the same tags, and a single response would otherwise wait for one of
    each of the others. The last element is the response's position, or the largest position before it in its flow."""
    position: int
    number: int
    """Number in its flow."""
    charge: int
    start: float
    finish: float
    """Its flow's tag behind it."""
    step: float
    flow: Flow
    candidate: Candidate


def weight_of(priority: int) -> float:
    return WEIGHTS.get(priority, DEFAULT_WEIGHT)


def tier_of(priority: int) -> float:
    """The weight of the tier of a class."""
    if priority == Priority.WINDOW:
        return WINDOW_WEIGHT
    return weight_of(priority) * (1 if priority in FOREGROUND else TIER_PART)


def in_order(flows: Sequence[WaitingFlow], virtual_time: float) -> Iterator[Tagged]:
    """The responses of all flows."""
    return heapq.merge(*(flow.tagged(virtual_time) for flow in flows), key=attrgetter("order"))
