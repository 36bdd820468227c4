"""What a fault gets: the fleet, its target, its own random numbers, and locks so that faults do not collide."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role


@dataclass(slots=True)
class Takeover:
    """A worker that was killed or stopped, and how far its responses were then."""

    signal: str
    at: float
    """Seconds since the epoch."""
    last: dict[str, int]
    """Response id -> its last committed event."""


@dataclass(slots=True)
class Arena:
    """What one fault gets. `random` belongs to this fault alone."""

    fleet: Fleet
    random: Random
    locks: dict[str, asyncio.Lock]
    takeovers: list[Takeover] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    """Responses whose rows were damaged on purpose: id -> key of its story."""
    crashes: list[float] = field(default_factory=list)
    """When Postgres crashed (monotonic seconds)."""
    aim: Member | None = None
    """The process to hit if it has the role that the fault needs; otherwise one is drawn."""
    target: str = ""
    """Name of the process that was picked; empty for faults of services."""

    def pick(self, role: Role) -> Member:
        aimed = self.aim is not None and self.aim.role is role
        member = self.aim if self.aim is not None and aimed else self.random.choice(self.fleet.of(role))
        self.target = member.name
        return member

    def lock(self, name: str) -> asyncio.Lock:
        """The lock of a target: it has one fault at a time."""
        return self.locks.setdefault(name, asyncio.Lock())

    def seconds(self, minimum: float, maximum: float) -> float:
        return self.random.uniform(minimum, maximum)


Inflict = Callable[[Arena], Awaitable[None]]
"""Inflicts a fault; returns when it is repaired or repairs itself."""
