"""Labels with few values."""

from __future__ import annotations

from collections.abc import Mapping

MAX_PROJECT_LABELS = 50
"""Projects with a label of their own; the others share OTHER."""
OTHER = "other"


class Bounded:
    """The first MAX_PROJECT_LABELS values that come keep their names for as long as the process lives, so that no
    counter goes back; later ones are OTHER."""

    def __init__(self, most: int = MAX_PROJECT_LABELS) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


def top(amounts: Mapping[str, int], most: int = MAX_PROJECT_LABELS) -> dict[str, int]:
    """The largest `most` amounts by name, and the sum of the rest as OTHER."""
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(amount for _, amount in ranked[most:])
    return dict(ranked[:most]) | ({OTHER: rest} if rest else {})
