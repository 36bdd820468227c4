"""What is sent now, where to, and in which kind of place: by a dispatch, by an insert, and once more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from app.queue.message import FOREGROUND
from app.scheduling.loads import Load
from app.scheduling.order import Flow, Tagged, WaitingFlow, in_order
from app.scheduling.placement import Candidate, places, with_placed

MAX_SENT = 64
"""Responses of one dispatch, if the workers have room."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The loads of a queue's workers, and whether anybody waits in it."""

    loads: Sequence[Load] = ()
    waits: bool = False
    foreground_waits: bool = False
    paused: Collection[str | None] = ()
    """The projects that operators have paused in it; None: all. What they have in line does not wait here."""

    def is_paused(self, project: str) -> bool:
        return None in self.paused or project in self.paused

    def room(self) -> Room:
        """How much a dispatch may send."""
        free = sum(max(load.open_room - load.ahead, 0) for load in self.loads)
        room = sum(max(load.open_room, 0) for load in self.loads)
        ahead = sum(load.ahead for load in self.loads)
        is_open = self.waits and (free > 0 or (room > 0 and 2 * room >= ahead))
        most = sum(max(load.most_room, 0) for load in self.loads) if self.foreground_waits else 0
        return Room(min(room, MAX_SENT) if is_open else 0, min(most, MAX_SENT))


@dataclass(frozen=True, slots=True)
class Room:
    """How many responses a dispatch may send."""

    open: int
    """Responses for slots that are open to all. A dispatch of one costs as much as one of many, so a worker gets what
    is ahead once more than half of it is there."""
    foreground: int
    """How many foreground responses may be sent to foreground places."""

    def __bool__(self) -> bool:
        return self.open > 0 or self.foreground > 0


@dataclass(frozen=True, slots=True)
class RunningFlow:
    """How many responses of a flow workers have claimed, or are sent to foreground places."""

    flow: Flow
    count: int

    @property
    def level(self) -> float:
        """The flow's running responses, by its weight."""
        return self.count / self.flow.weight


@dataclass(frozen=True, slots=True)
class Sent:
    """A response that is sent by a dispatch."""

    tagged: Tagged
    node: str
    foreground_place: bool


def dispatched(
    loads: Sequence[Load],
    flows: Sequence[WaitingFlow],
    virtual_time: float,
    room: Room,
    running: Sequence[RunningFlow] = (),
) -> list[Sent]:
    """What a dispatch sends, in its order: first what gets foreground places, then the next ones of all that wait.

    `flows` have `room` responses each, or all that wait. `running` are those of the same queue.
    """
    first = list(in_order([flow for flow in flows if flow.flow.is_foreground], virtual_time))[: room.foreground]
    placed = places([each.candidate for each in _allowed(first, loads, running)], loads, lambda load: load.most_room)
    sent = [Sent(each, placed[each.candidate.id], True) for each in first if each.candidate.id in placed]
    loads = with_placed(loads, placed)
    others = (each for each in in_order(flows, virtual_time) if each.candidate.id not in placed)
    first = list(islice(others, min(room.open, sum(max(load.open_room, 0) for load in loads))))
    placed = places([each.candidate for each in first], loads, lambda load: load.open_room)
    return sent + [Sent(each, placed[each.candidate.id], False) for each in first]


def _allowed(first: Sequence[Tagged], loads: Sequence[Load], running: Sequence[RunningFlow]) -> list[Tagged]:
    """Those of the foreground that get places. The first ones take what is kept for them. The others make background
    yield, and may only while their flow has less than the background flow that runs most: responses by weight."""
    kept = sum(max(load.kept_room, 0) for load in loads)
    level = max((each.level for each in running if not each.flow.is_foreground), default=0.0)
    has = {each.flow: each.count for each in running}
    return [
        each
        for number, each in enumerate(first, 1)
        if number <= kept or each.number + has.get(each.flow, 0) <= each.flow.weight * level
    ]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A response that is about to be inserted."""

    candidate: Candidate
    priority: int
    project: str = ""


@dataclass(frozen=True, slots=True)
class Sending:
    """The decision on the message of a response that is inserted."""

    at_once: bool
    """Otherwise the response waits for a dispatch."""
    sent_to: str | None = None
    """The node of the worker that takes it; None: nobody yet."""
    foreground_place: bool = False
    """Whether it has one of the places that are kept for foreground responses."""
    is_first: bool = False
    """Whether it waits, and nobody waited before it: then nobody else may dispatch it soon."""
    is_refused: bool = False
    """Whether it is not inserted: what it is for is paused, and its client would wait for nothing."""


def at_once(arrivals: Sequence[Arrival], queue: QueueState) -> dict[str, Sending]:
    """What becomes of each of these responses of one queue, by its id.

    If nobody waits and the workers have room, responses are sent at once: an idle system takes not a step more than
    without a dispatch. Nobody is passed, so no flow is charged. Foreground responses first take the places that are
    kept for them, whatever of the background waits. Beyond these they do not stand behind background responses, which
    may run for hours, in a worker: they wait for a dispatch, which may make one yield.

    What is paused stays in line, until operators resume it: of the background; a foreground response is refused.
    """
    made = {
        each.candidate.id: Sending(False, is_refused=each.priority in FOREGROUND and queue.is_paused(each.project))
        for each in arrivals
    }
    unpaused = [each for each in arrivals if not queue.is_paused(each.project)]
    foreground = [] if queue.foreground_waits else [each for each in unpaused if each.priority in FOREGROUND]
    kept = places([each.candidate for each in foreground], queue.loads, lambda load: load.kept_room)
    made |= {name: Sending(True, node, True) for name, node in kept.items()}
    if queue.waits:
        return made
    has_background = any(load.background > 0 for load in queue.loads)
    others = [
        each.candidate
        for each in unpaused
        if each.candidate.id not in kept and not (has_background and each.priority in FOREGROUND)
    ]
    loads = with_placed(queue.loads, kept)
    return made | {
        name: Sending(True, node) for name, node in places(others, loads, lambda load: load.open_room).items()
    }


TRIALS_AT_ONCE = 8
"""How many suspects are sent to one worker until they have made progress."""


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """A worker as suspects find it."""

    load: Load
    trials: int
    """Suspects without progress that it has."""
    others: int
    """Responses that it has beside these."""
    just_started: bool


def retried(candidates: Sequence[Candidate], loads: Sequence[Load]) -> dict[str, str]:
    """The nodes for responses that were released. They go at once, however much the workers have."""
    return places(candidates, loads, lambda _: len(candidates))


def tried(candidates: Sequence[Candidate], workers: Sequence[TrialLoad], *, anywhere: bool) -> dict[str, str]:
    """The nodes for suspects, a few for each worker: those that wait for their trial keep places of others.

    They go to workers that have nothing else, or have just started: most likely in place of the one that died. What a
    suspect may end next is not long at work there. `anywhere`: also to workers that run others' work.
    """
    rooms = {
        each.load.node: min(each.load.slots, TRIALS_AT_ONCE) - each.trials
        for each in workers
        if each.others == 0 or each.just_started or anywhere
    }
    return places(candidates, [each.load for each in workers], lambda load: rooms.get(load.node, 0))
