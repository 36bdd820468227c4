"""Behind whom a response waits for its turn, and for how long, in words."""

from __future__ import annotations

from app.operations.words import count_of, span
from app.scheduling.line import Place


def behind(place: Place, project: str, priority: int) -> str:
    """Returns who is ahead of a response of this project and priority: at least one is."""
    about = "" if place.is_exact else "about "
    own = sum(number for each, number in place.ahead.items() if (each.project, each.priority) == (project, priority))
    others = place.number - own
    projects = len({each.project for each in place.ahead} - {project})
    parts = [f"{about}{count_of(own, 'response')} of its own project and class"] if own else []
    if others:
        whose = count_of(projects, "other project") if projects else "its project in other classes"
        parts.append(f"{about}{count_of(others, 'response')} of {whose}")
    lines = f" ({about}{count_of(place.in_files, 'line')} of batches in files among them)" if place.in_files else ""
    return " and ".join(parts) + lines


def when(expected: float | None) -> str:
    """Returns when its turn comes, as a sentence."""
    if expected is None:
        return " Nothing of this model has ended of late, so nobody knows when that is."
    return f" At the pace of late that is in about {span(expected)}."
