"""How many crashes a response has after a death, and how long its trial is."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from app.store.guards import HandOver
from workers.generation.suspects import AGAIN, MAX_TRIAL, crashes_after, trial_of

MAX_CRASHES = 5
NOW = datetime(2026, 11, 28, tzinfo=UTC)
LATELY, LONG_AGO = NOW - AGAIN / 2, NOW - 2 * AGAIN


def row(crashes: int, attempt: int, yields: int = 0, history: Any = None) -> Any:
    return SimpleNamespace(crashes=crashes, attempt=attempt, yields=yields, history=history)


def died(*times: datetime, how: HandOver = HandOver.ENGINE_DIED) -> list[dict[str, Any]]:
    return [{"attempt": 1, "worker": "w", "to": time.isoformat(), "how": how.value} for time in times]


def run(crashes: int, commits: int, *, alone: bool = False, history: Any = None) -> Any:
    ran = row(crashes, 9, history=history)
    return SimpleNamespace(
        row=ran, commits=commits, is_alone=alone, alone_until=0.0, can_continue=True, now=lambda: NOW
    )


@pytest.mark.parametrize(
    ("crashes", "commits", "alone", "engine_died", "history", "after"),
    [
        (0, 0, False, True, None, 1),  # no progress
        (3, 0, True, True, None, 4),
        (3, 0, False, False, None, 4),
        (3, 9, True, True, None, 4),  # progress, but nothing else can be why
        (0, 9, False, True, None, 0),  # progress beside others: the first such death says nothing
        (0, 9, False, True, died(LONG_AGO), 0),
        (0, 9, False, True, died(LATELY, how=HandOver.CRASHED), 0),
        (0, 9, False, True, died(LONG_AGO, LATELY), 1),  # the second is a suspicion, and no more
        (3, 9, False, True, died(LATELY), 1),
        (3, 9, False, False, died(LATELY), 0),  # the engine gave up its request alone
        (3, 9, True, False, died(LATELY), 0),
    ],
)
def test_progress_forgives_crashes_unless_it_was_alone_or_another_engine_died_lately(
    crashes: int, commits: int, alone: bool, engine_died: bool, history: Any, after: int
) -> None:
    died_under = run(crashes, commits, alone=alone, history=history)
    assert crashes_after(died_under, MAX_CRASHES, engine_died=engine_died) == after


def test_where_one_crash_is_the_limit_an_engine_s_death_after_progress_fails_nobody() -> None:
    assert crashes_after(run(0, 9, history=died(LATELY)), 1, engine_died=True) == 0


def test_a_trial_grows_with_the_attempts_and_yields_are_none() -> None:
    assert [trial_of(row(1, attempt)) for attempt in range(2, 6)] == [1, 4, 9, 16]
    assert trial_of(row(1, 5, yields=3)) == 1
    assert trial_of(row(1, 200)) == MAX_TRIAL
    assert trial_of(row(0, 7)) == 0


def test_what_ends_each_engine_after_n_commits_is_failed_soon() -> None:
    for n in (0, 1, 5, 50, 500):
        crashes, attempt, history = 0, 1, list[dict[str, Any]]()
        while crashes < MAX_CRASHES:
            ended = run(crashes, n, alone=n < trial_of(row(crashes, attempt)), history=history)
            crashes = crashes_after(ended, MAX_CRASHES, engine_died=True)
            history = [*history, *died(LATELY)]
            attempt += 1
        assert attempt - 1 <= n**0.5 + MAX_CRASHES + 3
