"""Every attack in its short form, side by side on one installation. All is judged but latencies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.attacks.attack import Attack, Observed, judge_answers, judge_bystander, judge_memory
from tests.attacks.catalog import ATTACKS
from tests.attacks.memory import Demand
from tests.attacks.run import arena, side_by_side

pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Outcome:
    answers: dict[str, Counter[str]]
    together: Observed


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with arena() as running:
        yield Outcome(*asyncio.run(side_by_side(running, ATTACKS)))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda each: each.name)
def test_an_attack_gets_the_answers_that_it_should(outcome: Outcome, attack: Attack) -> None:
    assert judge_answers(attack, outcome.answers[attack.name], full=False) == []


def test_the_bystander_is_served_beside_all_attacks(outcome: Outcome) -> None:
    assert judge_bystander(outcome.together) == []


def test_the_attacks_leave_nothing_behind(outcome: Outcome) -> None:
    assert outcome.together.leftovers == ()


def test_memory_stays_within_the_stated_bounds(outcome: Outcome) -> None:
    bounds = Demand(connections=200, readers=200, large=True, contexts=True)
    assert judge_memory("API", outcome.together.api, bounds.api_bytes()) == []
    assert judge_memory("worker", outcome.together.worker, bounds.worker_bytes()) == []
