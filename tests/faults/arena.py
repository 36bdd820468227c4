"""What faults work on: the fleet, a target in it, a random of their own, and locks so that they do not collide."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role


@dataclass(slots=True)
class Takeover:
    """A worker that was killed or told to stop, and how far its responses had come."""

    how: str
    at: float
    """Seconds since the epoch."""
    last: dict[str, int]
    """Response id -> the last event that it had committed."""


@dataclass(slots=True)
class Arena:
    """What faults work on. `random` is the fault's own."""

    fleet: Fleet
    random: Random
    locks: dict[str, asyncio.Lock]
    takeovers: list[Takeover] = field(default_factory=list)
    aim: Member | None = None
    """The process to hit, where it has the role that is wanted; any other is drawn."""
    target: str = ""
    """The process that was chosen, where it is one."""

    def pick(self, role: Role) -> Member:
        aimed = self.aim is not None and self.aim.role is role
        member = self.aim if self.aim is not None and aimed else self.random.choice(self.fleet.of(role))
        self.target = member.name
        return member

    def lock(self, name: str) -> asyncio.Lock:
        """One fault at a time for each target."""
        return self.locks.setdefault(name, asyncio.Lock())

    def seconds(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)


Inflict = Callable[[Arena], Awaitable[None]]
"""Breaks something, and returns once it is whole again or on its way there."""
