"""How many responses are sent to a worker beyond its engine's slots."""

from __future__ import annotations

import pytest

from workers.generation.slots import AHEAD_SECONDS, MEMORY_SECONDS, Slots


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def after(clock: Clock, slots: int, per_second: float, seconds: float = 2 * MEMORY_SECONDS, limit: int = 0) -> Slots:
    """The slots of a worker after so many endings a second."""
    made, start = Slots(slots, limit or slots, clock), clock.now
    for number in range(round(per_second * seconds)):
        clock.now = start + (number + 1) / per_second
        made.note_end()
    clock.now = start + seconds
    return made


def test_nothing_is_sent_ahead_before_the_first_ending() -> None:
    assert Slots(256, 256).ahead == 0


@pytest.mark.parametrize("per_second", [4, 20, 100, 400])
def test_a_worker_is_sent_ahead_what_ends_within_the_time_that_a_response_may_wait(per_second: float) -> None:
    ahead = after(Clock(), 256, per_second).ahead
    assert abs(ahead - per_second * AHEAD_SECONDS) <= 1


def test_responses_of_one_length_that_end_together_are_remembered_until_they_end_again() -> None:
    clock = Clock()
    slots = Slots(256, 256, clock)
    for _ in range(256):
        slots.note_end()
    clock.now += MEMORY_SECONDS - 0.1
    assert slots.ahead == 256 * AHEAD_SECONDS / MEMORY_SECONDS


def test_a_worker_whose_responses_take_minutes_is_sent_one_ahead_or_none() -> None:
    clock = Clock()
    slots = after(clock, 256, 0.5)
    assert slots.ahead == 1
    clock.now += MEMORY_SECONDS + 2
    assert slots.ahead == 0


@pytest.mark.parametrize(
    ("slots", "limit", "ahead", "most"),
    [
        (4, 4, 4, 8),  # no more are sent ahead than there are slots
        (256, 64, 0, 64),  # slots that are left free on purpose stay free
        (64, 256, 64, 256),  # a limit beyond the slots is for what waits for tools
    ],
)
def test_the_most_responses_of_a_worker(slots: int, limit: int, ahead: int, most: int) -> None:
    made = after(Clock(), slots, 1000, limit=limit)
    assert (made.ahead, made.most, made.count) == (ahead, most, min(slots, limit))
