"""How workers share a queue: each one's share, and what it asks of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.celery_host.sharing import (
    ALONE_SECONDS,
    KEPT_SECONDS,
    LOOK_SECONDS,
    WAIT_SECONDS,
    Load,
    Question,
    Sharing,
    notes_of,
    share,
)

LISTS = ("model.demo", "model.demo:3")
LOADS = st.builds(Load, st.integers(0, 300), st.integers(1, 256))


@pytest.mark.parametrize(
    ("queued", "mine", "others", "expected"),
    [
        (12, Load(0, 256), [], 12),
        (12, Load(0, 256), [Load(0, 256)], 6),
        (11, Load(1, 256), [Load(0, 256)], 5),
        (12, Load(0, 256), [Load(200, 256)], 12),
        (12, Load(200, 256), [Load(0, 256)], 0),
        (200, Load(0, 256), [Load(0, 256)], 100),
        (200, Load(100, 256), [Load(0, 256)], 50),
        (30, Load(0, 256), [Load(0, 128)], 20),
        (1, Load(5, 8), [Load(5, 8)], 1),
        (1, Load(6, 8), [Load(5, 8)], 0),
        (100, Load(4, 4), [Load(4, 4)], 50),
    ],
)
def test_a_share_makes_workers_equally_full(queued: int, mine: Load, others: list[Load], expected: int) -> None:
    assert share(queued, mine, others) == expected


def level_of(queued: int, loads: Sequence[Load]) -> float:
    """The level up to which the queued responses fill all workers below it, found by trying."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        level = (low + high) / 2
        room = sum(max(0.0, level * load.slots - load.responses) for load in loads)
        low, high = (level, high) if room < queued else (low, level)
    return high


@given(st.integers(1, 500), st.lists(LOADS, min_size=1, max_size=6), st.randoms())
def test_workers_that_take_their_shares_in_any_order_take_all_and_end_equally_full(
    queued: int, loads: list[Load], random: Any
) -> None:
    left, now = queued, list(loads)
    for _ in range(3):
        order = list(range(len(now)))
        random.shuffle(order)
        for index in order:
            others = [load for other, load in enumerate(now) if other != index]
            part = min(share(left, now[index], others), left) if left else 0
            now[index] = Load(now[index].responses + part, now[index].slots)
            left -= part
    assert left == 0
    fair = level_of(queued, loads)
    took = [after for before, after in zip(loads, now, strict=True) if after != before]
    assert all((load.responses - 1) / load.slots <= fair for load in took)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Notes:
    """Redis, as far as `Sharing` uses it."""

    queued: int = 0
    now: int = 100
    notes: dict[bytes, bytes] = field(default_factory=dict)
    questions: int = 0

    def eval(self, _script: str, keys: int, *given: Any) -> list[Any]:
        assert given[:keys] == (notes_of(LISTS), *LISTS)
        name, responses, slots = given[keys:]
        self.questions += 1
        self.notes[name.encode()] = b"%d %d %d" % (responses, slots, self.now)
        return [self.queued, self.now, len(self.notes), [part for note in self.notes.items() for part in note]]

    def hdel(self, key: str, *names: bytes) -> None:
        assert key == notes_of(LISTS)
        for name in names:
            del self.notes[name]


@dataclass
class Worker:
    """One that takes what it may, and keeps it."""

    name: str
    notes: Notes
    clock: Clock
    has: int = 0
    slots: int = 256

    def __post_init__(self) -> None:
        self.sharing = Sharing(self.name, lambda: Load(self.has, self.slots), self.clock)

    def ask(self, most: int = 8) -> Question:
        return self.sharing.question(self.notes, LISTS, most)

    def take(self) -> int:
        taken = min(self.ask().count, self.notes.queued)
        self.has += taken
        self.notes.queued -= taken
        return taken


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def pair(notes: Notes, clock: Clock) -> tuple[Worker, Worker]:
    """Two that know of each other."""
    first, second = Worker("a", notes, clock), Worker("b", notes, clock)
    for worker in (first, second, first):
        worker.ask()
        clock.now += ALONE_SECONDS
    return first, second


@pytest.mark.parametrize("queued", [12, 200])
@pytest.mark.parametrize("turns", ["ab", "aab", "aaaaaaaaaaaaaaaaaab"])
def test_a_burst_is_shared_equally_however_seldom_the_other_worker_asks(
    pair: tuple[Worker, Worker], notes: Notes, queued: int, turns: str
) -> None:
    first, second = pair
    notes.queued = queued
    while notes.queued:
        waits = False
        for turn in turns:
            if turn == "b":
                second.take()
            elif not waits:
                waits = first.take() == 0
    assert abs(first.has - second.has) <= 1


def test_a_worker_that_has_more_leaves_what_is_queued_to_the_other_and_looks_again_soon(
    pair: tuple[Worker, Worker], notes: Notes
) -> None:
    first, _ = pair
    first.has, notes.queued = 5, 3
    question = first.ask()
    assert question.count == 0
    assert question.seconds is not None and LOOK_SECONDS <= question.seconds < 2 * LOOK_SECONDS


def test_what_an_emptier_worker_does_not_take_is_taken_all_the_same_and_ever_faster(
    pair: tuple[Worker, Worker], notes: Notes
) -> None:
    first, _ = pair
    first.has, notes.queued = 200, 30
    assert [first.take() for _ in range(12)] == [0, 1, 0, 2, 0, 4, 0, 8, 0, 8, 0, 7]


def test_a_worker_that_has_more_does_not_wait_for_the_next_message_either(pair: tuple[Worker, Worker]) -> None:
    first, second = pair
    first.has = 5
    assert [first.ask().count for _ in range(4)] == [0] * 4
    assert second.ask() == Question(1, second.ask().seconds)


def test_two_equally_full_workers_wait_for_one_message_each_and_not_for_long(pair: tuple[Worker, Worker]) -> None:
    for worker in pair:
        question = worker.ask()
        assert question.count == 1
        assert question.seconds is not None and WAIT_SECONDS <= question.seconds < 2 * WAIT_SECONDS


def test_a_worker_that_is_alone_takes_what_it_can_and_seldom_looks(notes: Notes, clock: Clock) -> None:
    worker = Worker("a", notes, clock)
    notes.queued = 100
    assert [worker.ask() for _ in range(20)] == [Question(8)] * 20
    assert notes.questions == 1
    clock.now += ALONE_SECONDS
    worker.ask()
    assert notes.questions == 2


def test_a_worker_that_died_or_is_full_is_forgotten(pair: tuple[Worker, Worker], notes: Notes) -> None:
    first, _ = pair
    first.has, notes.queued = 100, 3
    notes.now += KEPT_SECONDS + 1
    assert first.ask() == Question(8)
    assert set(notes.notes) == {b"a"}


def test_of_many_workers_each_takes_its_part_of_what_is_queued(clock: Clock) -> None:
    class Drawn(Notes):
        def eval(self, *given: Any) -> list[Any]:
            queued, now, workers, found = super().eval(*given)
            return [queued, now, workers, found[:34]]

    notes = Drawn()
    workers: Sequence[Worker] = [Worker(f"w{number}", notes, clock) for number in range(100)]
    for worker in workers:
        worker.ask()
    clock.now += ALONE_SECONDS
    notes.queued = 400
    assert workers[50].ask().count in (4, 5)
