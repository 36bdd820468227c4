"""What a worker offers, and how many messages it takes of what was sent to it."""

from __future__ import annotations

from app.queue.message import Kind
from workers.generation.slots import Slots
from workers.pace import Pace


def noting(slots: int, limit: int) -> tuple[Slots, list[int]]:
    """Slots, and what they offered after each change."""
    changes: list[int] = []
    made = Slots(slots, Pace(), limit, changed=lambda: changes.append(made.offered))
    return made, changes


def test_a_worker_offers_its_slots_until_it_takes_nothing() -> None:
    slots, changes = noting(8, 256)
    assert slots.offered == slots.count == 8
    slots.offer(is_offering=False)
    assert (slots.offered, slots.count) == (0, 8)
    slots.offer(is_offering=True)
    assert changes == [0, 8]


def test_only_a_change_is_announced() -> None:
    slots, changes = noting(8, 8)
    for is_offering in (True, False, False, True, True):
        slots.offer(is_offering=is_offering)
    for limit in (8, 4, 4):
        slots.resize(limit)
    assert changes == [0, 8, 4]


def test_what_takes_nothing_offers_nothing_after_a_change_of_its_limit_either() -> None:
    slots, changes = noting(8, 8)
    slots.offer(is_offering=False)
    slots.resize(4)
    assert changes == [0, 0]
    slots.offer(is_offering=True)
    assert slots.offered == 4


def test_answers_are_taken_up_to_the_most_whatever_foreground_responses_there_are() -> None:
    slots = Slots(8, Pace(), 256)
    assert [slots.free(Kind.ANSWERS, answers, 0) for answers in (0, 8, 15, 16)] == [16, 8, 1, 0]
    assert slots.free(Kind.ANSWERS, 8, 4) == 8


def test_a_smaller_limit_than_the_engines_slots_is_the_most_answers() -> None:
    slots = Slots(8, Pace(), 3)
    assert [slots.free(Kind.ANSWERS, answers, 0) for answers in (0, 3)] == [3, 0]


def test_foreground_responses_take_kept_and_empty_slots_up_to_half_of_all() -> None:
    slots = Slots(32, Pace(), 256)
    assert slots.kept == 2
    assert [slots.free(Kind.FOREGROUND, 0, taken) for taken in (0, 4, 16)] == [16, 12, 0]
    assert slots.free(Kind.FOREGROUND, 32, 0) == 2, "no slot is empty, and two are kept"
