"""What a worker offers and takes, who generates in it, and who yields."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import cast

import pytest

from app.queue.message import Kind, Priority
from tests.support.waiting import until
from workers.engine.base import EngineAway
from workers.generation import slots as slots_module
from workers.generation.run import Run
from workers.generation.slots import PASSED_SECONDS, STEADY_SECONDS, Slots


def test_a_worker_offers_its_slots_until_it_takes_nothing_and_only_a_change_is_announced() -> None:
    changes: list[int] = []
    slots = Slots(8, 256, changed=lambda: changes.append(slots.offered))
    assert slots.offered == slots.count == 8
    for is_offering in (True, False, False, True, True):
        slots.offer(is_offering=is_offering)
    assert (changes, slots.count) == ([0, 8], 8)
    for limit in (256, 4, 4):
        slots.resize(limit)
    assert changes == [0, 8, 4]
    slots.offer(is_offering=False)
    slots.resize(8)
    assert changes == [0, 8, 4, 0, 0], "what takes nothing offers nothing after a change of its limit either"
    slots.offer(is_offering=True)
    assert slots.offered == 8


def test_answers_are_taken_up_to_the_most_whatever_foreground_responses_there_are() -> None:
    slots = Slots(8, 8)
    assert [slots.free(Kind.ANSWERS, answers, 0) for answers in (0, 8, 15, 16)] == [16, 8, 1, 0]
    assert slots.free(Kind.ANSWERS, 8, 4) == 8
    smaller = Slots(8, 3)
    assert [smaller.free(Kind.ANSWERS, answers, 0) for answers in (0, 3)] == [3, 0]


def test_foreground_responses_take_kept_and_empty_slots_up_to_half_of_all() -> None:
    slots = Slots(32, 256)
    assert slots.kept == 2
    assert [slots.free(Kind.FOREGROUND, 0, taken) for taken in (0, 4, 16)] == [16, 12, 0]


# Who generates, and who yields


@dataclass(frozen=True)
class Row:
    project: str
    priority: Priority
    foreground_place: bool = False


class FakeRun:
    """A run as its slots see it: it generates until it is ended, or yields."""

    def __init__(self, row: Row, held: int = 100) -> None:
        self.row, self.held, self.used = row, held, held
        self.slot_at, self.progress_at = 0.0, None
        self.can_continue, self.yielding, self.generates = True, False, False
        self.over = asyncio.Event()
        self.task: asyncio.Task[None]

    def yield_(self) -> None:
        self.yielding = True
        self.task.cancel()


class Rig:
    """Slots by a clock that the test moves."""

    def __init__(self, slots: int, cache_tokens: int | None = None, limit: int = 0) -> None:
        self.now = 1000.0
        self.notes: list[tuple[int, int]] = []
        self.slots = Slots(
            slots, limit or slots, lambda: self.now, lambda: self.notes.append(self.slots.away), cache_tokens
        )

    async def start(self, project: str, held: int = 100, *, stream: bool = False, steady: bool = False) -> FakeRun:
        """A background response, or one with a foreground place."""
        row = Row(project, Priority.FOREGROUND if stream else Priority.BACKGROUND, stream)
        run = FakeRun(row, held)
        run.task = asyncio.create_task(self._generate(run))
        await self.settle()
        if steady:
            run.progress_at = self.now - 2 * STEADY_SECONDS
        return run

    async def _generate(self, run: FakeRun) -> None:
        with suppress(asyncio.CancelledError):
            async with self.slots.taken(cast(Run, run)):
                run.generates = True
                await run.over.wait()
        run.generates = False

    async def end(self, *runs: FakeRun) -> None:
        for run in runs:
            run.over.set()
        await self.settle()

    async def wait(self, seconds: float) -> None:
        self.now += seconds
        self.slots.admit()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def full(self, project: str = "a", *, count: int = 0, held: int = 100) -> list[FakeRun]:
        """Steady background responses in every slot that is open to them."""
        count = count or self.slots.count - self.slots.kept
        return [await self.start(project, held, steady=True) for _ in range(count)]


def test_a_sixteenth_of_the_slots_is_kept_and_none_of_fewer() -> None:
    counts = (1, 2, 8, 15, 16, 31, 256)
    assert [Slots(count, count).kept for count in counts] == [0, 0, 0, 0, 1, 1, 16]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
async def test_a_small_engine_that_is_full_of_background_makes_room_for_a_stream(count: int) -> None:
    rig = Rig(count)
    runs = await rig.full()
    assert all(run.generates for run in runs), "background has every slot"
    assert rig.slots.free(Kind.FOREGROUND, count, 0) >= 1
    stream = await rig.start("b", stream=True)
    assert stream.generates
    assert [run.yielding for run in runs].count(True) == 1


async def test_a_response_yields_once_it_has_generated_behind_a_commit_as_long_as_it_was_read() -> None:
    rig = Rig(1)
    run = await rig.start("a")
    stream = await rig.start("b", stream=True)
    await rig.wait(60.0)
    assert not stream.generates, "nothing is committed"
    assert rig.slots.free(Kind.FOREGROUND, 1, 0) == 0
    run.progress_at = rig.now
    await rig.wait(59.0)
    assert not run.yielding, "it was read for a minute"
    assert rig.slots.free(Kind.FOREGROUND, 1, 0) == 0
    await rig.wait(1.0)
    assert run.yielding and stream.generates


async def test_what_another_attempt_could_not_continue_does_not_yield() -> None:
    rig = Rig(1)
    (run,) = await rig.full()
    run.can_continue = False
    stream = await rig.start("b", stream=True)
    await rig.wait(3600.0)
    assert run.generates and not stream.generates
    await rig.end(run)
    assert stream.generates


async def test_a_flood_of_short_streams_makes_one_response_yield_and_another_project_finds_the_rest() -> None:
    rig = Rig(8)
    runs = await rig.full()
    waiting = await rig.start("a")
    for _ in range(200):
        stream = await rig.start("b", stream=True)
        assert stream.generates
        await rig.wait(0.05)
        await rig.end(stream)
        await rig.wait(0.05)
    assert [run.yielding for run in runs].count(True) == 1
    streams = [await rig.start("c", stream=True) for _ in range(4)]
    assert all(stream.generates for stream in streams)
    await rig.end(*streams)
    assert not waiting.generates
    await rig.wait(STEADY_SECONDS)
    assert waiting.generates, "the foreground keeps no slot that it does not use"


async def test_a_project_with_nothing_in_the_engine_is_next() -> None:
    rig = Rig(2)
    first, _ = await rig.full()
    others = [await rig.start("a") for _ in range(5)]
    single, second = await rig.start("b"), await rig.start("b")
    await rig.end(first)
    assert single.generates and not second.generates
    await rig.end(single)
    assert second.generates and not any(run.generates for run in others)
    await rig.start("c", steady=True)


# The engine's cache


async def test_what_the_cache_does_not_hold_waits_here_and_smaller_ones_pass() -> None:
    rig = Rig(16, cache_tokens=16_000)
    first, second = [await rig.start("a", 12_000) for _ in range(2)]
    assert first.generates and not second.generates
    small = await rig.start("b", 500)
    assert small.generates
    await rig.end(first, small)
    assert second.generates


async def test_a_part_of_the_cache_is_the_foregrounds() -> None:
    rig = Rig(16, cache_tokens=16_000)
    await rig.start("a", 14_000)
    background = await rig.start("a", 1_500)
    assert not background.generates
    assert (await rig.start("b", 1_500, stream=True)).generates


async def test_a_response_as_large_as_the_cache_runs_alone() -> None:
    rig = Rig(16, cache_tokens=16_000)
    small = await rig.start("b", 500)
    large = await rig.start("a", 16_000)
    assert not large.generates
    await rig.end(small)
    assert large.generates


async def test_a_large_response_is_passed_for_a_while_and_then_has_its_turn() -> None:
    rig = Rig(16, cache_tokens=16_000)
    small = await rig.start("b", 5_000)
    large = await rig.start("a", 12_000)
    passing = await rig.start("b", 5_000)
    assert passing.generates
    await rig.wait(PASSED_SECONDS)
    late = await rig.start("b", 500)
    assert not late.generates
    await rig.end(small, passing)
    assert large.generates and late.generates


async def test_a_project_that_fills_the_cache_holds_up_no_other_by_its_next_response() -> None:
    rig = Rig(16, cache_tokens=16_000)
    await rig.start("a", 12_000)
    next_one = await rig.start("a", 12_000)
    await rig.wait(10 * PASSED_SECONDS)
    assert (await rig.start("b", 500)).generates
    assert not next_one.generates


async def test_a_large_prompt_that_has_its_turn_holds_up_no_stream() -> None:
    rig = Rig(16, cache_tokens=16_000)
    await rig.start("b", 5_000)
    large, larger = await rig.start("a", 12_000), await rig.start("d", 15_000, stream=True)
    await rig.wait(2 * PASSED_SECONDS)
    assert not large.generates and not larger.generates
    assert (await rig.start("c", 500, stream=True)).generates
    assert not (await rig.start("c", 500)).generates


async def test_streams_that_come_back_from_their_tools_push_background_out_of_half_of_the_slots_at_most() -> None:
    rig = Rig(8)
    runs = await rig.full()
    for _ in range(8):
        await rig.start("b", stream=True)
    await rig.wait(STEADY_SECONDS)
    assert [run.yielding for run in runs].count(True) == 4


async def test_a_stream_that_finds_the_cache_full_makes_background_yield() -> None:
    rig = Rig(16, cache_tokens=16_000)
    large = await rig.start("a", 15_000, steady=True)
    small = await rig.start("c", 500, steady=True)
    stream = await rig.start("b", 1_500, stream=True)
    assert large.yielding and stream.generates and small.generates


async def test_a_large_stream_pushes_out_no_flow_that_has_less_than_its_own() -> None:
    rig = Rig(16, cache_tokens=16_000)
    small = [await rig.start("a", 1_000, steady=True) for _ in range(4)]
    first = await rig.start("b", 9_000, stream=True)
    second = await rig.start("b", 9_000, stream=True)
    assert first.generates and not second.generates
    assert all(run.generates for run in small)


# What is away


async def test_what_waits_for_its_tools_is_noted_after_a_while_and_leaves_its_slot_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "AWAY_SECONDS", 0.0)
    rig = Rig(4, limit=16)
    runs = [FakeRun(Row("a", Priority.FOREGROUND, bool(number % 2))) for number in range(3)]
    with ExitStack() as calls:
        for run in runs:
            calls.enter_context(rig.slots.left(cast(Run, run)))
        assert rig.notes == [], "a short call is never noted"
        await until(lambda: rig.notes == [(2, 1)])
        assert rig.slots.free(Kind.FOREGROUND, 2, 1) == 2, "the one that is away has no place of the foreground"
    await until(lambda: rig.notes == [(2, 1), (0, 0)])


async def test_no_more_is_sent_for_what_is_away_than_the_worker_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "AWAY_SECONDS", 0.0)
    rig = Rig(4, limit=6)
    with ExitStack() as calls:
        for _ in range(20):
            calls.enter_context(rig.slots.left(cast(Run, FakeRun(Row("a", Priority.BACKGROUND)))))
        await until(lambda: rig.notes != [])
        assert (rig.slots.most, rig.slots.offered, rig.slots.away, rig.slots.ahead) == (8, 4, (4, 0), 0)


async def test_while_the_engine_is_away_nobody_waits_and_nothing_is_offered() -> None:
    rig = Rig(2)
    first, second, third = [await rig.start("a") for _ in range(3)]
    assert (first.generates, second.generates, third.generates) == (True, True, False)
    rig.slots.engine_has(0)
    await rig.settle()
    assert third.task is not None and isinstance(third.task.exception(), EngineAway)
    assert rig.slots.offered == 0 and first.generates
    late = await rig.start("a")
    assert late.task is not None and isinstance(late.task.exception(), EngineAway)
    rig.slots.engine_has(3)
    assert rig.slots.offered == 2, "the limit of the worker holds"
    again = await rig.start("a")
    await rig.end(first)
    await rig.settle()
    assert again.generates
    await rig.end(second, again)
