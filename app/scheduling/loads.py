"""A worker's load, and how much more it may be sent.

Some of its slots are kept for foreground responses, in *foreground places*; the others are open to all. Beyond the kept
slots foreground responses may push background out, of a part of the slots.
"""

from __future__ import annotations

from dataclasses import dataclass

KEPT_PART = 16
"""One of so many slots of each worker is kept for foreground responses: none of fewer."""
FOREGROUND_PART = 2
"""Foreground responses push background out of one of so many slots at most, and of one at least."""


def kept_of(slots: int) -> int:
    """How many of a worker's slots are kept for foreground responses."""
    return slots // KEPT_PART


def most_foreground_of(slots: int) -> int:
    """How many foreground responses a worker runs at most beside those in the order of all."""
    return max(slots // FOREGROUND_PART, 1)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many more responses than it has slots one worker wants, by its node: so many are about to end there."""

    node: str = ""
    responses: int = 0


NOTHING_AHEAD = Ahead()


@dataclass(frozen=True, slots=True)
class Load:
    """A worker that takes responses, and those that were sent to it and have not ended."""

    node: str
    slots: int
    """Number of the worker's slots, at least 1."""
    answers: int = 0
    """Responses without a foreground place. What waits for its tools is in neither number."""
    foreground: int = 0
    """Responses with a foreground place."""
    background: int = 0
    """How many of all are background responses."""
    ahead: int = 0
    """How many more it wants beyond its slots, because as many are about to end."""

    @property
    def has(self) -> int:
        return self.answers + self.foreground

    @property
    def open_room(self) -> int:
        """How many more it has slots for that are open to all."""
        return self.slots - max(kept_of(self.slots), self.foreground) - self.answers + self.ahead

    @property
    def kept_room(self) -> int:
        """How many more foreground responses it has slots for that are kept for them."""
        return kept_of(self.slots) - self.foreground

    @property
    def most_room(self) -> int:
        """How many more foreground responses may push background out of it."""
        return most_foreground_of(self.slots) - self.foreground
