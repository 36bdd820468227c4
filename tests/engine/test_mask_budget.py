"""What grammars hold of an engine's time, who must end, and what a walk finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.heavy import PROJECT
from tests.support.waiting import until
from workers.engine import grammar_walk
from workers.engine.grammar_walk import PLAIN_STEPS, Walker
from workers.engine.mask_budget import BUDGET_SECONDS, FREE_SECONDS, Cost, MaskBudget, Running, mean_after, to_end

MILLISECOND = 0.001


def running(name: str, milliseconds: float, promised: float = 0.0, project: str = "a") -> Running:
    return Running(name, project, promised * MILLISECOND, milliseconds * MILLISECOND)


@pytest.mark.parametrize(
    ("those", "ended"),
    [
        ([running(str(number), 2.4) for number in range(200)], []),  # ordinary ones count nothing
        ([running("alone", 29)], []),
        ([running("alone", 33)], ["alone"]),
        ([running("late", 12), running("later", 14), running("honest", 12, promised=11)], ["later"]),
        ([running("1", 25, promised=20), running("2", 25, promised=20)], []),  # they waited for their turn
        ([running("1", 12), running("2", 13), running("other", 20, project="b")], ["2"]),  # "a" takes more in all
        ([running("1", 25, promised=20), running("2", 25, promised=20), running("other", 5, project="b")], ["other"]),
    ],
)
def test_dear_requests_end_until_the_budget_holds_those_of_the_project_that_takes_most_first(
    those: list[Running], ended: list[str]
) -> None:
    assert to_end(those) == ended


def test_one_token_that_takes_long_is_chance_and_growth_shows_at_once() -> None:
    assert mean_after(MILLISECOND, 0.2) - FREE_SECONDS < BUDGET_SECONDS
    mean, stalled = 0.0, 0.0
    for cost in (0.01 * 2**step for step in range(20)):
        mean, stalled = mean_after(mean, cost), stalled + cost
        if to_end([Running("growing", "a", 0.0, mean)]):
            break
    assert stalled < 0.5


async def test_dear_grammars_wait_for_each_other_cheap_ones_for_nobody_and_projects_take_turns() -> None:
    budget, dear, cheap = MaskBudget(2**30), Cost(seconds=0.025), Cost(seconds=FREE_SECONDS)
    order, first_may_end = list[str](), asyncio.Event()

    async def run(project: str, cost: Cost, name: str, until: asyncio.Event | None = None) -> None:
        PROJECT.set(project)
        async with budget.held(cost):
            order.append(name)
            if until is not None:
                await until.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run("a", dear, "first", first_may_end))
        for number in range(3):
            tasks.create_task(run("a", dear, f"a{number}"))
        tasks.create_task(run("b", dear, "b"))
        for _ in range(50):
            tasks.create_task(run("b", cheap, "cheap"))
        await until(lambda: order.count("cheap") == 50)
        assert set(order) == {"first", "cheap"}
        first_may_end.set()
    assert [name for name in order if name != "cheap"] == ["first", "a0", "b", "a1", "a2"]
    assert (budget.masks.held, budget.compiled.held) == (0, 0)


async def test_compiled_grammars_have_a_sum() -> None:
    budget = MaskBudget(2**26)
    async with budget.held(Cost(size=2**25)), budget.held(Cost(size=2**20)):
        waiting = asyncio.ensure_future(budget.held(Cost(size=2**26)).__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], float]:
    """The cost of a grammar whose masks take so long by their number in a walk."""

    def walk(seconds: Callable[[int], float]) -> float:
        now = SimpleNamespace(seconds=0.0)
        monkeypatch.setattr(grammar_walk.time, "process_time", lambda: now.seconds)

        class Matcher:
            def __init__(self, _: Any) -> None:
                self._number = 0

            def fill_next_token_bitmask(self, mask: Any) -> None:
                now.seconds += seconds(self._number)
                self._number += 1

            def accept_token(self, _: int) -> bool:
                return True

            def is_terminated(self) -> bool:
                return False

        mask = SimpleNamespace(tolist=lambda: [[0b1111]])
        library = SimpleNamespace(GrammarMatcher=Matcher, allocate_token_bitmask=lambda *_: mask)
        tokens = SimpleNamespace(vocab_size=4, decoded_vocab=[b"a", b"b", b"c", b""], stop_token_ids=[3])
        return Walker(library, tokens).cost(None)

    return walk


def test_a_walk_judges_the_dearest_place_and_not_the_mean(walked: Callable[[Callable[[int], float]], float]) -> None:
    assert walked(lambda _: 0.01) == pytest.approx(0.01, rel=0.1)

    def late(number: int) -> float:
        return 0.1 if number > PLAIN_STEPS - 8 else 0.001

    assert sum(map(late, range(PLAIN_STEPS))) / PLAIN_STEPS < BUDGET_SECONDS < walked(late)
