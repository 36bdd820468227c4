"""Bounds: totals, shares, and who waits for whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bounds import SHARE, Bound, BoundReached, Holding, ShareReached, TotalReached, UnknownAddress

TURNS = 5
"""Turns of the event loop: enough for everybody who was let in to go on."""


def taken(bound: Bound, *projects: str | None) -> list[Holding]:
    return [bound.take(project) for project in projects]


def as_many_as_possible(bound: Bound, *projects: str | None) -> Counter[str | None]:
    """Each project takes one in its turn, until all are refused. Returns what each one got."""
    got: Counter[str | None] = Counter()
    while True:
        before = got.total()
        for project in projects:
            try:
                bound.take(project)
            except BoundReached:
                continue
            got[project] += 1
        if got.total() == before:
            return got


# Totals


def test_a_holding_that_would_exceed_the_total_stays_as_it_was() -> None:
    bound = Bound("bytes", 100, free=10)
    first, second = bound.take(None, 70), bound.take(None, 50)
    with pytest.raises(TotalReached):
        second.resize(51)
    assert bound.held == 100
    first.release()
    second.resize(110)
    assert bound.held == 100
    second.release()
    second.release()
    assert bound.held == 0


def test_the_only_holder_may_exceed_the_total_and_shrinks_at_any_time() -> None:
    bound = Bound("bytes", 100)
    giant = bound.take("a", 1000)
    with pytest.raises(TotalReached):
        bound.take("b")
    giant.resize(500)
    giant.resize(99)
    bound.take("b")
    assert bound.held == 100


def test_a_holding_ends_with_its_block() -> None:
    bound = Bound("places", 1)
    with pytest.raises(KeyError), bound.take("a"):
        raise KeyError
    assert bound.held == 0


# Shares


@pytest.mark.parametrize(
    ("bound", "project", "most"),
    [
        (Bound("places", 512), "a", 448),
        (Bound("places", 16), None, 16),
        (Bound("places", 16, shares=False), "a", 16),
        (Bound("connections", 64, operators=True, shares=False), "a", 64),
    ],
    ids=["seven eighths for one alone", "all without a project", "all without shares", "no part of operators either"],
)
def test_what_one_project_gets_of_a_total_it_gets_again(bound: Bound, project: str | None, most: int) -> None:
    for _ in range(2):
        holdings = taken(bound, *[project] * most)
        with pytest.raises(ShareReached if most < bound.total else TotalReached):
            bound.take(project)
        for holding in holdings:
            holding.release()


@pytest.mark.parametrize("others", [1, 2, 5])
def test_greedy_projects_get_the_same_and_leave_room_for_another(others: int) -> None:
    projects = [f"proj_{number}" for number in range(1 + others)]
    bound = Bound("places", 1000)
    got = as_many_as_possible(bound, *projects)
    assert max(got.values()) - min(got.values()) <= 1
    assert min(got.values()) == pytest.approx(1000 * SHARE / (1 + SHARE * len(projects)), abs=1)
    bound.take("a new one")


def test_a_project_without_anything_needs_room_only() -> None:
    bound = Bound("places", 8)
    taken(bound, *["a"] * 7)
    last = bound.take("b")
    with pytest.raises(TotalReached):
        bound.take("c")
    last.release()
    bound.take("c")


def test_one_holding_may_grow_up_to_the_total() -> None:
    bound = Bound("bytes", 100)
    other, grows = bound.take("b", 10), bound.take("a", 1)
    grows.resize(90)
    other.release()
    grows.resize(100)
    with pytest.raises(TotalReached):
        bound.take("b")


# The operators' part

PROJECTS = [f"proj_{number}" for number in range(100)]


def test_projects_together_leave_a_sixteenth_to_operators_and_strangers() -> None:
    bound = Bound("connections", 64, operators=True)
    assert as_many_as_possible(bound, *PROJECTS).total() == 60
    with pytest.raises(TotalReached):
        bound.take("a new one")
    taken(bound, None, None, None, UnknownAddress("address"))
    with pytest.raises(TotalReached):
        bound.take(None)


def test_what_a_stranger_holds_of_the_operators_part_goes_to_no_project() -> None:
    bound = Bound("connections", 64, operators=True)
    as_many_as_possible(bound, *PROJECTS)
    for project in ("a new one", PROJECTS[0]):
        with pytest.raises(TotalReached):
            bound.take(UnknownAddress("address")).give(project)
    bound.take(UnknownAddress("address")).give(None)


async def test_operators_wait_for_no_turn_of_a_project() -> None:
    bound = Bound("bytes", 64, operators=True)
    held = bound.take("a", 60)
    waiting = [asyncio.create_task(bound.wait(project, size)) for project, size in (("b", 8), (None, 4), (None, 1))]
    await asyncio.sleep(0)
    operator = await waiting[1]
    assert not waiting[0].done() and not waiting[2].done()
    operator.release()
    await waiting[2]
    assert not waiting[0].done()
    held.release()
    await waiting[0]


# Waiting


class Waiting:
    """Holders of one bound that wait for room, each under a name that begins with its project's letter."""

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.admitted: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, **sizes: int) -> list[str]:
        """Starts holders with these sizes; returns the names of all that were let in so far, in their order."""
        for name, size in sizes.items():
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._hold(name, size))
        return await self.settled()

    async def end(self, *names: str) -> list[str]:
        for name in names:
            self._ends[name].set()
        return await self.settled()

    async def cancel(self, *names: str) -> list[str]:
        for name in names:
            self._tasks[name].cancel()
        return await self.settled()

    async def settled(self) -> list[str]:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self.admitted

    async def _hold(self, name: str, size: int) -> None:
        with await self.bound.wait(name[0], size):
            self.admitted.append(name)
            await self._ends[name].wait()


async def test_projects_take_turns_and_each_is_served_in_order() -> None:
    waiting = Waiting(Bound("places", 1))
    await waiting.start(a1=1, a2=1, a3=1, b1=1, b2=1, c1=1)
    for name in ("a1", "a2", "b1", "c1", "a3", "b2"):
        await waiting.end(name)
    assert waiting.admitted == ["a1", "a2", "b1", "c1", "a3", "b2"]
    assert waiting.bound.held == 0


async def test_those_behind_one_without_room_wait_with_it() -> None:
    waiting = Waiting(Bound("bytes", 10, shares=False))
    assert await waiting.start(a1=6, b1=6, c1=4) == ["a1"], "c1 waits behind b1"
    assert await waiting.end("a1") == ["a1", "b1", "c1"]


async def test_a_project_that_holds_its_share_is_passed_over() -> None:
    waiting = Waiting(Bound("places", 8))
    assert await waiting.start(**{f"a{number}": 1 for number in range(9)}) == [f"a{number}" for number in range(7)]
    assert (await waiting.start(b1=1))[7:] == ["b1"]
    assert await waiting.end("a0") == [*(f"a{number}" for number in range(7)), "b1"], "a still holds 6 of 7"


async def test_what_is_free_for_each_waits_for_nobody() -> None:
    waiting = Waiting(Bound("bytes", 10, free=2))
    assert await waiting.start(a1=12, a2=3, b1=2, b2=0) == ["a1", "b1", "b2"]


async def test_a_waiter_that_is_cancelled_when_it_is_let_in_gives_its_place_to_the_next() -> None:
    bound = Bound("places", 1)
    first = bound.take("a")
    second, third = (asyncio.create_task(bound.wait("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.release()
    second.cancel()  # It was let in, and has not gone on yet.
    assert (await third).counted == bound.held == 1
    assert second.cancelled()


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "start", "end", "cancel"]), st.integers(0, 50), st.integers(0, 6)),
    max_size=40,
)
"""What happens, to which project or holder, and the size of a new one."""


class Model:
    """Checks after each step that the rule holds, and at the end that everybody was served."""

    def __init__(self, total: int, shares: bool) -> None:
        self.bound = Bound("bytes", total, free=1, shares=shares)
        self._shares = shares
        self._held: Counter[str] = Counter()
        self._holders = 0
        self._tasks: list[tuple[asyncio.Task[None], asyncio.Event]] = []

    async def run(self, steps: list[tuple[str, int, int]]) -> None:
        for what, which, size in steps:
            if what == "start":
                go = asyncio.Event()
                self._tasks.append((asyncio.create_task(self._hold("abc"[which % 3], size, go)), go))
            elif self._tasks:
                task, go = self._tasks[which % len(self._tasks)]
                if what == "end":
                    go.set()
                else:
                    task.cancel()
            if size % 2:  # Else several steps happen in one turn.
                await asyncio.sleep(0)
        for _, go in self._tasks:
            go.set()
        for task, _ in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task  # Nobody waits for ever.
        assert self.bound.held == self._holders == 0
        assert not self.bound._projects, "the list of projects does not grow"
        assert not self.bound._lines

    async def _hold(self, project: str, size: int, go: asyncio.Event) -> None:
        with await self.bound.wait(project, size):
            counted = max(0, size - 1)
            self._check(project, counted)
            self._held[project] += counted
            self._holders += bool(counted)
            try:
                await go.wait()
            finally:
                self._held[project] -= counted
                self._holders -= bool(counted)

    def _check(self, project: str, counted: int) -> None:
        """What was let in fits with all that hold something now. Some that were let in may not have gone on yet."""
        others, own = self._held.total(), self._held[project]
        if counted and others:
            assert others + counted <= self.bound.total
            if own and self._shares:
                assert own + counted <= SHARE * (self.bound.total - others - counted)


@given(steps=STEPS, total=st.integers(1, 16), shares=st.booleans())
def test_no_total_and_no_share_is_exceeded_and_nobody_waits_for_ever(
    steps: list[tuple[str, int, int]], total: int, shares: bool
) -> None:
    asyncio.run(Model(total, shares).run(steps))


# Whose a holding is


def test_a_holding_may_be_given_to_a_project_within_its_share() -> None:
    bound = Bound("connections", 8)
    red = [bound.take("address") for _ in range(7)]
    for each in red:
        each.give("red")
    last = bound.take("address")
    with pytest.raises(ShareReached):
        last.give("red")
    last.give("blue")
    for each in [*red, last]:
        each.release()
    assert bound.held == 0
    assert as_many_as_possible(bound, "red") == {"red": 7}


async def test_a_holding_that_waits_gets_its_size_in_the_turn_of_its_project() -> None:
    bound = Bound("bytes", 10)
    first, second = bound.take("a", 10), bound.take("b", 0)
    waiting = asyncio.create_task(second.wait(6))
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    await waiting
    assert bound.held == second.counted == 6


@pytest.mark.parametrize(("held", "refusal"), [("other", TotalReached), ("mine", ShareReached)])
async def test_who_has_waited_for_too_long_is_refused_and_keeps_nobody_waiting(
    held: str, refusal: type[BoundReached]
) -> None:
    bound = Bound("things", 8, seconds=0.01)
    full = bound.take(held, 7)
    rest = bound.take("third", 1)
    with pytest.raises(refusal):
        await bound.wait("mine", 1)
    full.release()
    rest.release()
    with await bound.wait("next", 8):
        assert bound.held == 8
