"""How attacks are judged, and that their table is whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.attacks.attack import API_GROWTH, WORKER_GROWTH, Ask, Attack, Observed, judge
from tests.attacks.catalog import ATTACKS
from tests.attacks.target import Target


async def _nothing(target: Target, count: int) -> None:
    pass


ATTACK = Attack("one", "none", _nothing, 2, 1)
QUIET = Observed(Counter({"400": 3}), tuple(Ask(float(n), 0.1, "completed") for n in range(10)), 0, 0)


def test_a_refused_attack_is_harmless() -> None:
    assert judge(ATTACK, QUIET, latency=True) == []


@pytest.mark.parametrize("answer", ["500", "200", "timed out", "smuggled"])
def test_an_answer_that_the_attack_may_not_get_is_harmful(answer: str) -> None:
    assert judge(ATTACK, replace(QUIET, answers=Counter({answer: 1})), latency=True) == [f"answered {answer}"]


def test_an_error_of_the_bystander_is_harmful() -> None:
    asks = (*QUIET.asks, Ask(11.0, 0.1, "503"))
    assert judge(ATTACK, replace(QUIET, asks=asks), latency=False) == ["the bystander got 503 1 times"]


def test_a_slow_answer_to_the_bystander_is_harmful_where_latency_is_judged() -> None:
    slow = replace(QUIET, asks=(*QUIET.asks, Ask(11.0, 30.0, "completed")))
    assert judge(ATTACK, slow, latency=False) == []
    assert len(judge(ATTACK, slow, latency=True)) == 1


def test_memory_above_the_bound_is_harmful() -> None:
    assert judge(ATTACK, replace(QUIET, api_growth=API_GROWTH, worker_growth=WORKER_GROWTH), latency=True) == []
    grown = replace(QUIET, api_growth=API_GROWTH + 1, worker_growth=WORKER_GROWTH + 1)
    assert len(judge(ATTACK, grown, latency=True)) == 2


def test_what_an_attack_leaves_behind_is_harmful() -> None:
    assert judge(ATTACK, replace(QUIET, leftovers=("9 connections are left",)), latency=True) != []


def test_an_attack_that_got_no_answer_tried_nothing() -> None:
    assert judge(ATTACK, replace(QUIET, answers=Counter()), latency=True) == ["nothing was tried"]


def test_attacks_have_names_of_their_own_and_a_short_form() -> None:
    assert len(ATTACKS) == len({each.name for each in ATTACKS}) >= 40
    assert all(0 < each.small <= each.full for each in ATTACKS)


def test_only_loopback_addresses_are_attacked() -> None:
    with pytest.raises(AssertionError, match="loopback"):
        Target("http://192.0.2.1:8000", "scripted")
