"""The schedule: which fault hits which process, and when; all drawn from the seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from random import Random

from tests.faults.arena import Arena
from tests.faults.fleet import Fleet
from tests.faults.kinds import KINDS
from tests.faults.member import Member
from tests.faults.plan import WHOLE_SECONDS, Plan
from tests.support.waiting import until

AT_ONCE = 4
"""Maximum of faults at a time."""


class Schedule:
    """`inflicted` counts faults by kind. `failures` are errors of the suite: faults that could not be inflicted."""

    def __init__(self, plan: Plan, fleet: Fleet) -> None:
        self._plan = plan
        self._fleet = fleet
        self._locks: dict[str, asyncio.Lock] = {}
        self.inflicted: Counter[str] = Counter()
        self.failures: list[str] = []
        self.crashes: list[float] = []
        """When Postgres crashed (monotonic seconds)."""
        self.history: list[str] = []
        """When each fault began and ended, to be read beside the logs."""

    async def run(self) -> None:
        """Inflicts all faults of the plan; returns when the last one is over."""
        names = [name for name in KINDS if self._plan.kinds is None or name in self._plan.kinds]
        names = [name for name in names if self._can_inflict(name)]
        await (self._in_turn(names) if self._plan.in_turn else self._at_random(names))

    def _can_inflict(self, name: str) -> bool:
        if name.startswith("clock: "):
            return self._fleet.clocks is not None
        if "server" in name:
            return self._plan.servers > 0
        return ("flower" not in name or self._plan.flower) and ("failed over" not in name or self._plan.standby)

    async def _at_random(self, names: list[str]) -> None:
        random = Random(f"faults {self._plan.seed}")
        slots, drawn = asyncio.Semaphore(AT_ONCE), list[str]()
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.faults):
                await asyncio.sleep(random.expovariate(1 / self._plan.pause))
                if self._plan.upgrade and number == self._plan.faults // 2:
                    await self._upgrade(slots)
                if self._plan.kinds is None:
                    drawn = random.choices(names, [KINDS[name][0] for name in names])
                elif not drawn:
                    drawn = random.sample(names, len(names))
                await slots.acquire()
                task = group.create_task(self._inflict(drawn.pop(), self._arena(number)))
                task.add_done_callback(lambda _: slots.release())

    async def _upgrade(self, slots: asyncio.Semaphore) -> None:
        """Upgrades the fleet once the faults under way are over; no other fault falls into it."""
        for _ in range(AT_ONCE):
            await slots.acquire()
        await self._fleet.wait_until_whole()
        await self._inflict("fleet: upgraded", self._arena(self._plan.faults))
        for _ in range(AT_ONCE):
            slots.release()

    async def _in_turn(self, names: list[str]) -> None:
        for number in range(self._plan.faults):
            aim, _ = await until(self._fleet.busiest, WHOLE_SECONDS, "a worker is at work")
            await self._inflict(names[number % len(names)], self._arena(number, aim))

    def _arena(self, number: int, aim: Member | None = None) -> Arena:
        random = Random(f"fault {self._plan.seed} {number}")
        return Arena(self._fleet, random, self._locks, self.crashes, aim)

    async def _inflict(self, name: str, arena: Arena) -> None:
        began = datetime.now(UTC)
        try:
            await KINDS[name][1](arena)
            self.inflicted[name] += 1
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        ended = datetime.now(UTC)
        self.history.append(f"{began:%H:%M:%S.%f} {ended:%H:%M:%S.%f} {name} {arena.target}")
