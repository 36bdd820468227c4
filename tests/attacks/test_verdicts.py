"""How attacks are judged, and that their table is whole."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from config.settings import load_settings
from tests.attacks.attack import FIRST_TOKEN, Ask, Attack, Memory, Observed, judge
from tests.attacks.memory import (
    CONNECTION_BYTES,
    CONTEXT_FACTOR,
    JSON_FACTOR,
    KEPT_BYTES,
    MIB,
    PARSED_BODIES,
    PROMPT_FACTOR,
    READER_BYTES,
    TYPICAL,
    WALL_BYTES,
)
from tests.attacks.projects import UNTRUSTED
from tests.attacks.target import Target

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
KEPT = KEPT_BYTES + 1


async def _nothing(target: Target, count: int) -> None:
    pass


ATTACK = Attack("one", "none", _nothing, 2, 1, {"400 input"}, full_only={"503"})
QUIET = Observed(Counter({"400 input": 3}), tuple(Ask(float(n), 0.1, "completed") for n in range(10)))


def problems(observed: Observed, *, full: bool = False) -> list[str]:
    return judge(ATTACK, observed, full=full)


def test_a_refused_attack_is_harmless() -> None:
    assert problems(QUIET) == []


@pytest.mark.parametrize("answer", ["500", "200", "timed out", "smuggled", "400 model", "503"])
def test_an_answer_that_the_attack_may_not_get_is_harmful(answer: str) -> None:
    answers = Counter({"400 input": 1, answer: 1})
    assert problems(replace(QUIET, answers=answers)) == [f"answered {answer!r}"]


def test_an_answer_that_did_not_come_is_harmful_unless_there_was_no_time_for_it() -> None:
    assert problems(QUIET, full=True) == ["never answered '503'"]
    assert problems(replace(QUIET, was_cut_off=True), full=True) == []
    assert problems(replace(QUIET, answers=Counter())) == ["never answered '400 input'"]


def test_with_another_model_any_answer_but_a_failure_will_do() -> None:
    for answer, harmful in (
        ("500", True),
        ("failed server_error", True),
        ("held", True),
        ("503", False),
        ("200", False),
    ):
        observed = replace(QUIET, answers=Counter({"400 input": 1, answer: 1}))
        assert bool(judge(ATTACK, observed, full=False, any_model=True)) == harmful, answer


def test_an_error_of_the_bystander_is_harmful() -> None:
    asks = (*QUIET.asks, Ask(11.0, 0.1, "503", "count"))
    assert problems(replace(QUIET, asks=asks)) == ["the bystander's count got 503 1 times"]


def test_a_kind_of_requests_that_is_slow_is_harmful_among_many_that_are_not() -> None:
    many = tuple(Ask(float(n), 0.01, "completed") for n in range(1000))
    slow = replace(QUIET, asks=(*many, Ask(1.0, 15.0, "completed", "count")), was_cut_off=True)
    assert problems(slow, full=True) == ["the bystander's p99 of count is 15.0 s (bound: 1.0)"]


def test_a_first_token_that_comes_late_is_harmful_where_it_is_judged() -> None:
    late = Ask(1.0, 0.8, "completed", FIRST_TOKEN)
    observed = replace(QUIET, asks=(*QUIET.asks, late), alone={FIRST_TOKEN: 0.2}, was_cut_off=True)
    assert judge(ATTACK, observed, full=True) == []
    assert len(judge(replace(ATTACK, first_token=0.5), observed, full=True)) == 1


def test_memory_above_the_bound_is_harmful() -> None:
    most = Memory(TYPICAL.api_bytes()), Memory(TYPICAL.worker_bytes())
    assert problems(replace(QUIET, api=most[0], worker=most[1])) == []
    other = Memory(WALL_BYTES + 1)
    grown = replace(QUIET, api=Memory(most[0].peak + 1), worker=Memory(most[1].peak + 1), other=other)
    assert len(problems(grown)) == 3


@pytest.mark.parametrize(
    ("kept", "leaks"),
    [((), False), ((KEPT,), False), ((KEPT, 0), False), ((KEPT, KEPT, 0), False), ((KEPT, KEPT, KEPT), True)],
)
def test_memory_that_each_round_leaves_behind_is_a_leak(kept: tuple[int, ...], leaks: bool) -> None:
    assert len(problems(replace(QUIET, api=Memory(kept=kept)))) == leaks
    assert len(problems(replace(QUIET, worker=Memory(kept=kept)))) == leaks


def test_the_bounds_of_memory_are_those_of_the_docs() -> None:
    page = " ".join((ROOT / "docs" / "operations.md").read_text().split())
    connection, reader = (f"{size / MIB:.2f}".rstrip("0") for size in (CONNECTION_BYTES, READER_BYTES))
    assert f"C x 0.9 MiB + R x {reader} MiB + 3 x B + {PARSED_BODIES} x {JSON_FACTOR} x M" in page
    assert float(connection) < 0.9
    assert f"{CONTEXT_FACTOR} x (W x (M + 256 KiB) + 2 x X)" in page
    assert f"about {PROMPT_FACTOR} MB for a megabyte of text" in page


def test_the_limits_of_attacks_are_those_that_the_docs_recommend() -> None:
    page = (ROOT / "docs" / "tenants.md").read_text()
    (recommended,) = re.findall("LONGHAUL_NEW_PROJECT_LIMITS=(.+)", page)
    assert load_settings(new_project_limits=recommended).new_project_limits == UNTRUSTED


def test_what_an_attack_leaves_behind_is_harmful() -> None:
    assert problems(replace(QUIET, leftovers=("9 connections are left",))) != []


def test_only_loopback_addresses_are_attacked() -> None:
    with pytest.raises(AssertionError, match="loopback"):
        Target("http://192.0.2.1:8000", "scripted")
