"""The schedule: which fault hits which process, and when; all drawn from the seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random

from sqlalchemy import text

from tests.faults.arena import Arena, Takeover
from tests.faults.fleet import Fleet
from tests.faults.kinds import KINDS
from tests.faults.member import Member
from tests.faults.plan import Plan
from tests.faults.polling import with_pause
from tests.support.waiting import until

AT_ONCE = 4
"""Maximum of faults at a time."""
MAX_TRIES = 5
"""How often a fault is repeated until it causes a takeover (`Plan.until_taken_over`)."""


class Schedule:
    """`inflicted` counts faults by kind. `failures` are errors of the suite: faults that could not be inflicted."""

    def __init__(self, plan: Plan, fleet: Fleet) -> None:
        self._plan = plan
        self._fleet = fleet
        self._locks: dict[str, asyncio.Lock] = {}
        self.inflicted: Counter[str] = Counter()
        self.failures: list[str] = []
        self.takeovers: list[Takeover] = []
        self.damaged: dict[str, str] = {}
        """Responses whose rows were damaged on purpose: id -> key of its story."""
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
        return ("flower" not in name or self._plan.flower) and ("failed over" not in name or self._plan.standby)

    async def _at_random(self, names: list[str]) -> None:
        random = Random(f"faults {self._plan.seed}")
        slots = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.faults):
                await asyncio.sleep(random.expovariate(1 / self._plan.pause))
                if self._plan.upgrade and number == self._plan.faults // 2:
                    await self._upgrade(slots)
                await slots.acquire()
                name = random.choices(names, self._weights(names))[0]
                task = group.create_task(self._inflict(name, self._arena(number)))
                task.add_done_callback(lambda _: slots.release())

    def _weights(self, names: list[str]) -> list[int]:
        """Kinds that were asked for by name are drawn, whatever their weight is."""
        return [KINDS[name][0] if self._plan.kinds is None else max(1, KINDS[name][0]) for name in names]

    async def _upgrade(self, slots: asyncio.Semaphore) -> None:
        """Upgrades the fleet once the faults under way are over; no other fault falls into it."""
        for _ in range(AT_ONCE):
            await slots.acquire()
        await self._fleet.wait_until_whole(self._plan.whole_seconds)
        await self._inflict("fleet: upgraded", self._arena(self._plan.faults))
        for _ in range(AT_ONCE):
            slots.release()

    async def _in_turn(self, names: list[str]) -> None:
        for number in range(self._plan.faults):
            name = names[number % len(names)]
            for _ in range(MAX_TRIES):
                aim, owned = await until(self._fleet.busiest, self._plan.whole_seconds, "a worker is at work")
                await self._inflict(name, self._arena(number, aim))
                if not self._plan.until_taken_over or await self._was_taken_over(owned):
                    break
            else:
                self.failures.append(f"{name}: nothing was taken over in {MAX_TRIES} tries")

    def _arena(self, number: int, aim: Member | None = None) -> Arena:
        random = Random(f"fault {self._plan.seed} {number}")
        return Arena(self._fleet, random, self._locks, self.takeovers, self.damaged, self.crashes, aim)

    async def _inflict(self, name: str, arena: Arena) -> None:
        began = datetime.now(UTC)
        try:
            await KINDS[name][1](arena)
            self.inflicted[name] += 1
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        ended = datetime.now(UTC)
        self.history.append(f"{began:%H:%M:%S.%f} {ended:%H:%M:%S.%f} {name} {arena.target}")

    async def _was_taken_over(self, owned: Mapping[str, int]) -> bool:
        """Whether a later attempt took any of these (id -> attempt), once each is taken over, final or deleted."""
        later = text("SELECT id, attempt, finished_at FROM responses WHERE id = ANY(:ids)")

        async def outcomes() -> list[bool]:
            """Whether each was taken over, and a False that makes the list true; empty while one still runs."""
            async with self._fleet.db.autocommit() as connection:
                rows = (await connection.execute(later, {"ids": list(owned)})).all()
            taken = [row.attempt > owned[row.id] for row in rows]
            running = any(row.finished_at is None and not took for row, took in zip(rows, taken, strict=True))
            return [] if running else [*taken, False]

        return any(
            await until(
                with_pause(outcomes), self._plan.whole_seconds, "the worker's responses are final or taken over"
            )
        )
