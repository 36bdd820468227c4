"""The schedule: which fault, on whom, when, all drawn from the seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from random import Random

from tests.faults.arena import Arena, Takeover
from tests.faults.fleet import Fleet
from tests.faults.kinds import KINDS
from tests.faults.plan import Plan

AT_ONCE = 4
"""Faults may overlap, up to this many."""


class Schedule:
    """`inflicted` counts by kind; `failures` are faults that could not be inflicted, which are the suite's own."""

    def __init__(self, plan: Plan, fleet: Fleet) -> None:
        self._plan = plan
        self._fleet = fleet
        self.inflicted: Counter[str] = Counter()
        self.failures: list[str] = []
        self.takeovers: list[Takeover] = []
        self.history: list[str] = []
        """When each fault began and ended, for whoever reads the logs."""

    async def run(self) -> None:
        """All faults of the plan; returns when the last one is over."""
        random, locks = Random(f"faults {self._plan.seed}"), dict[str, asyncio.Lock]()
        names = [name for name in KINDS if self._plan.kinds is None or name in self._plan.kinds]
        names = [name for name in names if self._plan.flower or "flower" not in name]
        weights = [KINDS[name][0] if self._plan.kinds is None else max(1, KINDS[name][0]) for name in names]
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.faults):
                await asyncio.sleep(random.expovariate(1 / self._plan.pause))
                await places.acquire()
                name = random.choices(names, weights)[0]
                arena = Arena(self._fleet, Random(f"fault {self._plan.seed} {number}"), locks, self.takeovers)
                task = group.create_task(self._inflict(name, arena))
                task.add_done_callback(lambda _: places.release())

    async def _inflict(self, name: str, arena: Arena) -> None:
        began = datetime.now(UTC)
        try:
            await KINDS[name][1](arena)
            self.inflicted[name] += 1
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        ended = datetime.now(UTC)
        self.history.append(f"{began:%H:%M:%S.%f} {ended:%H:%M:%S.%f} {name} {arena.target}")
