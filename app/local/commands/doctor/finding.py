"""The findings of a check."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

MAX_CLOCK_SECONDS = 2.0
"""Postgres' clock decides everything; what others say is in logs, and in the times of objects."""


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    """The part works, but not as it should."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """The part that was looked at."""
    level: Level
    found: str
    to_do: str = ""
    """One line, for operators; empty if all is well."""


Findings: TypeAlias = list[Finding]


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warn(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, Level.WARN, found, to_do)


def fail(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, Level.FAIL, found, to_do)


def now() -> float:
    """Seconds since the epoch, by this machine's clock."""
    return time.time()


def clock(name: str, theirs: float, before: float, after: float) -> Finding:
    """The clock of a service against this machine's (`now`): `theirs` was read between `before` and `after`."""
    off = max(before - theirs, theirs - after, 0.0)
    if off > MAX_CLOCK_SECONDS:
        side = "behind" if theirs < before else "ahead of"
        return warn(f"clock of {name}", f"{off:.1f} s {side} this machine's", "run NTP (chrony) on both machines")
    return ok(f"clock of {name}", f"as this machine's, within {off + (after - before) / 2:.3f} s")
