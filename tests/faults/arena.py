"""What a fault gets: the fleet, its target, its own random numbers, and locks so that faults do not collide."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role


@dataclass(slots=True)
class Arena:
    """What one fault gets. `random` belongs to this fault alone."""

    fleet: Fleet
    random: Random
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    crashes: list[float] = field(default_factory=list)
    """When Postgres crashed (monotonic seconds)."""
    aim: Member | None = None
    """The process to hit if it has the role that the fault needs; otherwise one is drawn."""
    target: str = ""
    """Name of the process that was picked; empty for faults of services."""

    def pick(self, role: Role) -> Member:
        aim = self.aim
        member = aim if aim is not None and aim.role is role else self.random.choice(self.fleet.of(role))
        self.target = member.name
        return member

    def lock(self, name: str) -> asyncio.Lock:
        """The lock of a target: it has one fault at a time."""
        return self.locks.setdefault(name, asyncio.Lock())

    def seconds(self, minimum: float, maximum: float) -> float:
        return self.random.uniform(minimum, maximum)


Inflict = Callable[[Arena], Awaitable[None]]
"""Inflicts a fault; returns when it is repaired or repairs itself."""
Undo = Callable[[], None]
