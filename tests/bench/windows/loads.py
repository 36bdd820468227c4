"""What is asked of the simulated queue."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.bench.windows.simulation import HOUR, SLOTS, SPEED, Job

TOKENS = 500
CAPACITY = SLOTS * SPEED * HOUR / TOKENS
"""Jobs an hour."""
WINDOWS = (2 * HOUR, 8 * HOUR, 24 * HOUR)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs, and the hours that they take."""

    name: str
    hours: float
    jobs: Sequence[Job]

    def of(self, project: str, *, in_window: bool) -> list[Job]:
        return [job for job in self.jobs if job.project == project and job.in_window == in_window]


def valleys() -> Scenario:
    """`b` fills the queue every other hour, and leaves four fifths of the next. `a` has an hour's work in windows of 2
    hours at the beginning of each busy hour, and one in windows of 8."""
    jobs: list[Job] = []
    for hour in range(8):
        busy = 0.95 if hour % 2 == 0 else 0.2
        jobs += _spread("b", hour, 1, round(busy * CAPACITY), hour)
    for hour in range(0, 6, 2):
        jobs += _spread("a", hour, 0.1, round(0.45 * CAPACITY), 100 + hour, 2 * HOUR)
    jobs += _spread("a", 0, 0.1, round(0.6 * CAPACITY), 200, 8 * HOUR)
    return _numbered("idle valleys", 10, jobs)


def full() -> Scenario:
    """`b` always has more than fits. `a` has work in windows for two fifths of the queue: its share is a half."""
    jobs = _spread("b", 0, 8, round(9 * CAPACITY), 1)
    for hour in range(6):
        jobs += _spread("a", hour, 1, round(0.3 * CAPACITY), 100 + hour, 2 * HOUR)
    jobs += _spread("a", 0, 0.1, round(0.8 * CAPACITY), 200, 8 * HOUR)
    jobs += _spread("a", 0, 8, round(0.05 * CAPACITY), 300)
    return _numbered("full load", 8.1, jobs)


def hopeless() -> Scenario:
    """`b` always has more than fits, and `a` twice as much in windows of 2 hours as its share."""
    jobs = _spread("b", 0, 8, round(9 * CAPACITY), 1)
    for hour in range(8):
        jobs += _spread("a", hour, 1, round(CAPACITY), 100 + hour, 2 * HOUR)
    return _numbered("hopeless load", 8, jobs)


SCENARIOS = (valleys, full, hopeless)


def _spread(project: str, begin: float, hours: float, count: int, seed: int, window: float | None = None) -> list[Job]:
    chance = random.Random(seed)
    jobs = []
    for _ in range(count):
        at = (begin + hours * chance.random()) * HOUR
        tokens = round(TOKENS * chance.uniform(0.5, 1.5))
        job = Job(0, project, at, tokens)
        jobs.append(job if window is None else replace(job, window=window))
    return jobs


def _numbered(name: str, hours: float, jobs: list[Job]) -> Scenario:
    jobs.sort(key=lambda job: job.at)
    return Scenario(name, hours, [replace(job, number=number) for number, job in enumerate(jobs)])
