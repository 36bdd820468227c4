"""A queue with one worker, in simulated time. The order is that of `app/scheduling`, or one to compare it with."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from app.queue.message import Priority
from app.scheduling.decisions import Room, dispatched
from app.scheduling.loads import Load
from app.scheduling.order import Flow, WaitingFlow, WaitingResponse
from app.scheduling.placement import Candidate
from app.scheduling.windows import MARGIN, Demand, part_of, share_of

SLOTS = 8
SPEED = 25.0
"""Tokens a second of one response."""
LOOK_SECONDS = 30.0
"""Maintenance looks more often."""
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """A response of the simulation."""

    number: int
    project: str
    at: float
    tokens: int
    window: float = math.inf
    """Seconds; without one it is ordinary background."""

    @property
    def due(self) -> float:
        return self.at + self.window

    @property
    def in_window(self) -> bool:
        return self.window < math.inf

    @property
    def seconds(self) -> float:
        return self.tokens / SPEED


@dataclass
class Outcome:
    """What became of the jobs."""

    in_time: list[Job] = field(default_factory=list)
    missed: list[Job] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    """When, by the number of the job."""
    begun: dict[int, float] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    """Tokens of jobs that were not in vain, by project."""
    wasted: int = 0
    """Tokens of jobs that ran and were not in time."""

    def waits(self, jobs: Iterable[Job]) -> float:
        """The mean time of these until they begin, of those that began."""
        waits = [self.begun[job.number] - job.at for job in jobs if job.number in self.begun]
        return sum(waits) / len(waits) if waits else 0.0


class Policy:
    """Longhaul's."""

    name = "Longhaul"
    margin = MARGIN

    def priority(self, job: Job) -> Priority:
        return Priority.WINDOW if job.in_window else Priority.BACKGROUND

    def rank(self, job: Job) -> float:
        """Where it is in its flow."""
        return job.due if job.in_window else 0.0

    def part(self, flow: Flow, others: Sequence[Flow], demands: Sequence[Demand], lead_seconds: float) -> float:
        return part_of(demands, SLOTS * SPEED * share_of(flow, others), lead_seconds)


class Fifo(Policy):
    """All are ordinary background, in the order of their arrival."""

    name = "first in, first out"

    def priority(self, job: Job) -> Priority:
        return Priority.BACKGROUND

    def rank(self, job: Job) -> float:
        return 0.0


class DeadlinesFirst(Policy):
    """The nearest deadline of a project first, before its other work, whether it can be in time or not."""

    name = "earliest deadline first"
    margin = 0.0

    def part(self, flow: Flow, others: Sequence[Flow], demands: Sequence[Demand], lead_seconds: float) -> float:
        return 1.0


class Simulation:
    """Runs jobs under a policy until an hour."""

    def __init__(self, jobs: Sequence[Job], policy: Policy, slots: int = SLOTS) -> None:
        self.outcome = Outcome()
        self._policy = policy
        self._slots = slots
        self._arrivals = sorted(jobs, key=attrgetter("at"))
        self._events: list[tuple[float, int, Job | None]] = []
        self._waiting: defaultdict[tuple[str, Priority], list[tuple[float, int, Job]]] = defaultdict(list)
        self._tags: dict[tuple[str, Priority], float] = {}
        self._parts: dict[tuple[str, Priority], float] = {}
        self._running: dict[int, Job] = {}
        self._virtual_time = 0.0
        self._mean = 20.0
        self._now = 0.0

    def run(self, hours: float) -> Outcome:
        """What of the jobs was in time, or not, until then."""
        for job in self._arrivals:
            self._at(job.at, job)
        self._at(0.0, None)
        while self._events and (event := heapq.heappop(self._events))[0] <= hours * HOUR:
            self._now = event[0]
            self._happens(event[2])
            self._dispatch()
        return self.outcome

    @property
    def _lead(self) -> float:
        return self._policy.margin * self._mean

    def _at(self, time: float, job: Job | None) -> None:
        heapq.heappush(self._events, (time, -1 if job is None else job.number, job))

    def _happens(self, job: Job | None) -> None:
        if job is None:
            self._look()
            self._at(self._now + LOOK_SECONDS, None)
        elif job.number in self._running:
            self._end(job)
        elif job.number not in self.outcome.ended:
            insort(self._waiting[self._key(job)], (self._policy.rank(job), job.number, job))

    def _key(self, job: Job) -> tuple[str, Priority]:
        return job.project, self._policy.priority(job)

    def _end(self, job: Job) -> None:
        del self._running[job.number]
        self.outcome.ended[job.number] = self._now
        took = self._now - self.outcome.begun[job.number]
        if took < job.seconds - 1e-6:
            self.outcome.wasted += round(took * SPEED)
            self.outcome.missed.append(job)
            return
        self.outcome.served[job.project] += job.tokens
        if job.in_window:
            self.outcome.in_time.append(job)
            self._mean += (took - self._mean) / 32

    def _look(self) -> None:
        """What maintenance does: work whose window has ended fails, and the rest may rise."""
        for rows in self._waiting.values():
            missed = [row for row in rows if row[2].due <= self._now]
            for row in missed:
                rows.remove(row)
                self.outcome.missed.append(row[2])
        flows = [Flow(*key) for key, rows in self._waiting.items() if rows]
        for flow in flows:
            if flow.priority == Priority.WINDOW:
                key = (flow.project, Priority.WINDOW)
                others = [each for each in flows if each.priority != Priority.WINDOW or self._parts.get(key)]
                demands = self._demands(key)
                self._parts[key] = self._policy.part(flow, others, demands, self._lead)

    def _demands(self, key: tuple[str, Priority]) -> list[Demand]:
        minutes: Counter[int] = Counter()
        for _, _, job in self._waiting[key]:
            minutes[int((job.due - self._now) // 60)] += job.tokens
        return [Demand(60.0 * minute, tokens) for minute, tokens in minutes.items()]

    def _dispatch(self) -> None:
        free = self._slots - len(self._running)
        if free <= 0 or not any(self._waiting.values()):
            return
        # No slot is kept for the foreground here: there is none.
        load = Load("w", self._slots, len(self._running), ahead=self._slots // 16)
        flows = list(self._flows(free))
        for sent in dispatched([load], flows, self._virtual_time, Room(free, 0)):
            key = (sent.tagged.flow.project, Priority(sent.tagged.flow.priority))
            number = int(sent.tagged.candidate.id)
            index = next(at for at, row in enumerate(self._waiting[key]) if row[1] == number)
            job = self._waiting[key].pop(index)[2]
            self._tags[key] = sent.tagged.finish
            self._virtual_time = max(self._virtual_time, sent.tagged.start)
            self._running[job.number] = job
            self.outcome.begun[job.number] = self._now
            self._at(min(self._now + job.seconds, max(job.due, self._now)), job)

    def _flows(self, most: int) -> Iterator[WaitingFlow]:
        """The first of each flow, as a dispatch reads them."""
        for key, rows in self._waiting.items():
            if rows:
                beside = [priority for (project, priority), own in self._waiting.items() if own and project == key[0]]
                windows = (key[0], Priority.WINDOW)
                part = self._parts.get(windows, 0.0) if Priority.WINDOW in beside else 0.0
                responses = [self._response(row) for row in self._first(key, rows, most)]
                tag = self._tags.get(key)
                yield WaitingFlow(Flow(*key), responses, beside, tag, 1.0, part, self._lead)

    def _first(
        self, key: tuple[str, Priority], rows: list[tuple[float, int, Job]], most: int
    ) -> list[tuple[float, int, Job]]:
        if key[1] != Priority.WINDOW:
            return rows[:most]
        cut = bisect_right(rows, (self._now + self._lead, math.inf))
        return rows[cut : cut + most] + rows[: min(cut, most)]

    def _response(self, row: tuple[float, int, Job]) -> WaitingResponse:
        rank, number, job = row
        left = job.due - self._now
        return WaitingResponse(Candidate(str(number)), number, job.tokens, False, round(rank * 1e6), left)
