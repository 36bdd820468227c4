"""When a process that dies is started again, and when that is hopeless."""

from __future__ import annotations

import signal

import pytest

from app.local.supervisor import MAX_DELAY_SECONDS, MAX_FAILURES, SHORT_LIFE_SECONDS, DeathRecord, describe


def after(*deaths: tuple[int, float]) -> DeathRecord:
    record = DeathRecord()
    for status, lifetime in deaths:
        record.died(status, lifetime)
    return record


def test_the_same_failure_again_and_again_is_hopeless() -> None:
    assert not after(*[(1, 0.1)] * (MAX_FAILURES - 1)).broken
    assert after(*[(1, 0.1)] * MAX_FAILURES).broken


def test_another_failure_or_a_longer_life_begins_the_count_anew() -> None:
    almost = [(1, 0.1)] * (MAX_FAILURES - 1)
    assert not after(*almost, (3, 0.1)).broken
    assert not after(*almost, (1, SHORT_LIFE_SECONDS), (1, 0.1)).broken


@pytest.mark.parametrize("status", [2, 78, 126, 127])
def test_a_wrong_configuration_is_hopeless_at_once(status: int) -> None:
    assert after((status, 500.0)).broken


@pytest.mark.parametrize("status", [0, -signal.SIGKILL, -signal.SIGTERM])
def test_what_others_do_to_it_is_never_its_failure(status: int) -> None:
    assert not after(*[(status, 0.1)] * 50).broken


def test_a_crash_of_its_own_is_its_failure() -> None:
    assert after(*[(-signal.SIGSEGV, 0.1)] * MAX_FAILURES).broken


def test_pauses_grow_to_a_limit_and_shrink_after_a_long_life() -> None:
    pauses = [after(*[(-9, 0.1)] * deaths).delay for deaths in range(1, 9)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, MAX_DELAY_SECONDS, MAX_DELAY_SECONDS]
    assert after(*[(-9, 0.1)] * 8, (-9, SHORT_LIFE_SECONDS)).delay == 0.5


def test_statuses_in_words() -> None:
    assert [describe(3), describe(-9), describe(-77)] == ["status 3", "SIGKILL", "signal 77"]
