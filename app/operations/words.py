"""Numbers and names in the sentences that operators read."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from itertools import islice


def count_of(number: int, thing: str, things: str | None = None) -> str:
    """`1 response`, `2 responses`, `1,234 responses`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def resume_command(model: str, project: str | None) -> str:
    """The command that ends a pause of the model, or of the project in it."""
    return f"longhaul resume {model}" + ("" if project is None else f" --project {project}")


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def moment(at: datetime) -> str:
    """`2026-11-27 03:54:48 UTC`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def some_of(names: Collection[str], most: int = 20) -> str:
    """The names, as far as they fit into a line: `a, b`, `a, b and 7 more`, `none`."""
    shown = ", ".join(islice(names, most)) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def span(seconds: float) -> str:
    """`3 s`, `4 min`, `2.5 h`, `3 days`."""
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 120 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
