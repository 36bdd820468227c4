"""How attacks are judged, and every attack in its short form, side by side. All is judged but latencies."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import replace

import pytest

from config.settings import CHECKOUT, load_settings
from tests.attacks.attack import (
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
    Ask,
    Attack,
    Demand,
    Memory,
    Observed,
    judge,
    judge_answers,
    judge_bystander,
    judge_memory,
)
from tests.attacks.catalog import ATTACKS
from tests.attacks.projects import UNTRUSTED
from tests.attacks.run import arena, side_by_side
from tests.attacks.target import Target

pytestmark = pytest.mark.long


async def _nothing(target: Target, count: int) -> None:
    pass


ATTACK = Attack("one", "none", _nothing, 2, 1, {"400 input"}, full_only={"503"})
ASKS = tuple(Ask(float(n), 0.01, "completed") for n in range(1000))
QUIET = Observed(Counter({"400 input": 3}), ASKS)
KEPT = KEPT_BYTES + 1
API, WORKER = TYPICAL.api_bytes(), TYPICAL.worker_bytes()
VERDICTS = {
    # what was observed, in the full form, what is wrong
    "refused": (QUIET, False, []),
    "another answer": (replace(QUIET, answers=Counter({"400 input": 1, "500": 1})), False, ["answered '500'"]),
    "no answer": (replace(QUIET, answers=Counter()), False, ["never answered '400 input'"]),
    "an answer that did not come": (QUIET, True, ["never answered '503'"]),
    "no time for an answer": (replace(QUIET, was_cut_off=True), True, []),
    "an error of the bystander": (
        replace(QUIET, asks=(*ASKS, Ask(11.0, 0.1, "503", "count"))),
        False,
        ["the bystander's count got 503 1 times"],
    ),
    "one slow kind of requests among many": (
        replace(QUIET, asks=(*ASKS, Ask(1.0, 15.0, "completed", "count")), was_cut_off=True),
        True,
        ["the bystander's p99 of count is 15.0 s (bound: 1.0)"],
    ),
    "memory within its bounds": (replace(QUIET, memory={"api": Memory(API), "worker": Memory(WORKER)}), False, []),
    "the API beyond them": (
        replace(QUIET, memory={"api": Memory(API + MIB)}),
        False,
        [f"api grew by {API // MIB + 1} MiB (bound: {API // MIB})"],
    ),
    "a process beyond the wall": (
        replace(QUIET, memory={"other": Memory(WALL_BYTES + MIB)}),
        False,
        ["other grew by 401 MiB (bound: 400)"],
    ),
    "memory kept twice": (replace(QUIET, memory={"api": Memory(kept=(KEPT, KEPT, 0))}), False, []),
    "memory kept by each round": (
        replace(QUIET, memory={"api": Memory(kept=(KEPT, KEPT, KEPT))}),
        False,
        ["api leaks: it kept 16, 16, 16 MiB"],
    ),
    "something left": (replace(QUIET, leftovers=("9 connections are left",)), False, ["9 connections are left"]),
}


def test_what_was_observed_is_judged() -> None:
    for name, (observed, full, problems) in VERDICTS.items():
        assert judge(ATTACK, observed, full=full) == problems, name


def test_the_bounds_of_memory_and_the_limits_are_those_of_the_docs() -> None:
    page = " ".join((CHECKOUT / "docs" / "operations.md").read_text().split())
    assert CONNECTION_BYTES / MIB < 0.9
    assert f"C x 0.9 MiB + R x {READER_BYTES / MIB:g} MiB + 3 x B + {PARSED_BODIES} x {JSON_FACTOR} x M" in page
    assert f"{CONTEXT_FACTOR} x (W x (M + 256 KiB) + 2 x X)" in page
    assert f"about {PROMPT_FACTOR} MB for a megabyte of text" in page
    (recommended,) = re.findall("LONGHAUL_NEW_PROJECT_LIMITS=(.+)", (CHECKOUT / "docs" / "tenants.md").read_text())
    assert load_settings(new_project_limits=recommended).new_project_limits == UNTRUSTED


def test_the_bystander_is_served_beside_all_attacks_and_memory_stays_within_the_stated_bounds() -> None:
    with arena() as running:
        answers, together = asyncio.run(side_by_side(running, ATTACKS))
    assert {each.name: judge_answers(each, answers[each.name], full=False) for each in ATTACKS} == {
        each.name: [] for each in ATTACKS
    }
    assert judge_bystander(together) == []
    assert together.leftovers == ()
    assert judge_memory(Demand(connections=200, readers=200, large=True, contexts=True), together.memory) == []
