"""How many responses a worker takes beyond its engine's slots."""

from __future__ import annotations

import pytest

from workers.generation.look_ahead import AHEAD_SECONDS, WINDOW_SECONDS, LookAhead


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def after(clock: Clock, slots: int, per_second: float, seconds: float = 2 * WINDOW_SECONDS) -> LookAhead:
    """The look-ahead after so many endings a second."""
    made, start = LookAhead(slots, clock), clock.now
    for number in range(round(per_second * seconds)):
        clock.now = start + (number + 1) / per_second
        made.note_end()
    clock.now = start + seconds
    return made


def test_nothing_is_taken_ahead_before_the_first_ending() -> None:
    assert LookAhead(256).places(256) == 256


@pytest.mark.parametrize("per_second", [4, 20, 100, 400])
def test_a_worker_takes_ahead_what_ends_within_the_time_that_a_response_may_wait(per_second: float) -> None:
    ahead = after(Clock(), 256, per_second).places(256) - 256
    assert abs(ahead - per_second * AHEAD_SECONDS) <= 1


def test_responses_of_one_length_that_end_together_are_remembered_until_they_end_again() -> None:
    clock = Clock()
    look_ahead = LookAhead(256, clock)
    for _ in range(256):
        look_ahead.note_end()
    clock.now += WINDOW_SECONDS - 0.1
    assert look_ahead.places(256) == 256 + 256 * AHEAD_SECONDS / WINDOW_SECONDS


def test_no_more_are_taken_ahead_than_there_are_slots() -> None:
    look_ahead = after(Clock(), 4, 1000)
    assert look_ahead.places(4) == look_ahead.most(4) == 8


def test_a_worker_whose_responses_take_minutes_takes_one_ahead_or_none() -> None:
    clock = Clock()
    look_ahead = after(clock, 256, 0.5)
    assert look_ahead.places(256) == 257
    clock.now += WINDOW_SECONDS + 2
    assert look_ahead.places(256) == 256


def test_slots_that_are_left_free_on_purpose_stay_free() -> None:
    look_ahead = after(Clock(), 256, 100)
    assert look_ahead.places(64) == look_ahead.most(64) == look_ahead.slots(64) == 64


def test_a_limit_beyond_the_engines_slots_takes_no_more_than_the_look_ahead() -> None:
    look_ahead = after(Clock(), 64, 1000)
    assert look_ahead.slots(256) == 64
    assert look_ahead.places(256) == look_ahead.most(256) == 128
