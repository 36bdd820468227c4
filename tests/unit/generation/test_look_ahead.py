"""How many responses are sent to a worker beyond its engine's slots."""

from __future__ import annotations

import pytest

from workers.generation.slots import AHEAD_SECONDS, MEMORY_SECONDS, Slots
from workers.pace import Pace


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def after(clock: Clock, slots: int, per_second: float, seconds: float = 2 * MEMORY_SECONDS, limit: int = 0) -> Slots:
    """The slots of a worker after so many endings a second."""
    pace, start = Pace(clock), clock.now
    for number in range(round(per_second * seconds)):
        clock.now = start + (number + 1) / per_second
        pace.note_end()
    clock.now = start + seconds
    return Slots(slots, pace, limit or slots)


def test_nothing_is_sent_ahead_before_the_first_ending() -> None:
    assert Slots(256, Pace(), 256).ahead == 0


@pytest.mark.parametrize("per_second", [4, 20, 100, 400])
def test_a_worker_is_sent_ahead_what_ends_within_the_time_that_a_response_may_wait(per_second: float) -> None:
    ahead = after(Clock(), 256, per_second).ahead
    assert abs(ahead - per_second * AHEAD_SECONDS) <= 1


def test_responses_of_one_length_that_end_together_are_remembered_until_they_end_again() -> None:
    clock = Clock()
    pace = Pace(clock)
    slots = Slots(256, pace, 256)
    for _ in range(256):
        pace.note_end()
    clock.now += MEMORY_SECONDS - 0.1
    assert slots.ahead == 256 * AHEAD_SECONDS / MEMORY_SECONDS


def test_no_more_are_sent_ahead_than_there_are_slots() -> None:
    slots = after(Clock(), 4, 1000)
    assert (slots.ahead, slots.most) == (4, 8)


def test_a_worker_whose_responses_take_minutes_is_sent_one_ahead_or_none() -> None:
    clock = Clock()
    slots = after(clock, 256, 0.5)
    assert slots.ahead == 1
    clock.now += MEMORY_SECONDS + 2
    assert slots.ahead == 0


def test_slots_that_are_left_free_on_purpose_stay_free() -> None:
    slots = after(Clock(), 256, 100, limit=64)
    assert (slots.ahead, slots.most, slots.count) == (0, 64, 64)


def test_a_limit_beyond_the_engines_slots_is_for_what_waits_for_tools() -> None:
    slots = after(Clock(), 64, 1000, limit=256)
    assert (slots.ahead, slots.most, slots.count) == (64, 256, 64)
