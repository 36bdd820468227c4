"""How many crashes a response has after a death, and how long its trial is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from workers.generation.suspects import MAX_TRIAL, crashes_after, trial_of

MAX_CRASHES = 5


def row(crashes: int, attempt: int, yields: int = 0) -> Any:
    return SimpleNamespace(crashes=crashes, attempt=attempt, yields=yields)


def run(crashes: int, commits: int, *, alone: bool = False) -> Any:
    return SimpleNamespace(row=row(crashes, 9), commits=commits, is_alone=alone)


@pytest.mark.parametrize(
    ("crashes", "commits", "alone", "engine_died", "after"),
    [
        (0, 0, False, True, 1),  # no progress
        (3, 0, True, True, 4),
        (3, 0, False, False, 4),
        (3, 9, True, True, 4),  # progress, but nothing else can be why
        (3, 9, False, True, 1),  # progress beside others: a suspect, and no more
        (0, 9, False, True, 1),
        (3, 9, False, False, 0),  # the engine gave up its request alone
        (3, 9, True, False, 0),
    ],
)
def test_progress_forgives_crashes_unless_it_was_alone(
    crashes: int, commits: int, alone: bool, engine_died: bool, after: int
) -> None:
    assert crashes_after(run(crashes, commits, alone=alone), MAX_CRASHES, engine_died=engine_died) == after


def test_where_one_crash_is_the_limit_an_engine_s_death_after_progress_fails_nobody() -> None:
    assert crashes_after(run(0, 9), 1, engine_died=True) == 0


def test_a_trial_grows_with_the_attempts_and_yields_are_none() -> None:
    assert [trial_of(row(1, attempt)) for attempt in range(2, 6)] == [1, 4, 9, 16]
    assert trial_of(row(1, 5, yields=3)) == 1
    assert trial_of(row(1, 200)) == MAX_TRIAL
    assert trial_of(row(0, 7)) == 0


def test_what_ends_each_engine_after_n_commits_is_failed_soon() -> None:
    for n in (0, 1, 5, 50, 500):
        crashes, attempt = 0, 1
        while crashes < MAX_CRASHES:
            alone = n < trial_of(row(crashes, attempt))
            crashes = crashes_after(
                SimpleNamespace(row=row(crashes, attempt), commits=n, is_alone=alone),  # type: ignore[arg-type]
                MAX_CRASHES,
                engine_died=True,
            )
            attempt += 1
        assert attempt - 1 <= n**0.5 + MAX_CRASHES + 2
