"""The clocks of the machines, against this one's."""

from __future__ import annotations

import time

from app.local.commands.doctor.finding import Finding, ok, warn

MAX_CLOCK_SECONDS = 2.0
"""Postgres' clock decides everything; what others say is in logs, and in the times of objects."""


def now() -> float:
    """Seconds since the epoch, by this machine's clock."""
    return time.time()


def judged(name: str, theirs: float, before: float, after: float) -> Finding:
    """`theirs` was read between `before` and `after`, all in seconds since the epoch."""
    off = max(before - theirs, theirs - after, 0.0)
    if off > MAX_CLOCK_SECONDS:
        side = "behind" if theirs < before else "ahead of"
        return warn(f"clock of {name}", f"{off:.1f} s {side} this machine's", "run NTP (chrony) on both machines")
    return ok(f"clock of {name}", f"as this machine's, within {off + (after - before) / 2:.3f} s")
