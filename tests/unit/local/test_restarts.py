"""When a process that dies is restarted, and when it is broken."""

from __future__ import annotations

import signal

import pytest

from app.local.restarts import (
    MAX_DELAY_SECONDS,
    MAX_FAILURES,
    SHORT_LIFE_SECONDS,
    DeathRecord,
    StopRequest,
    describe,
)


def after(*deaths: tuple[int, float]) -> DeathRecord:
    record = DeathRecord()
    for status, lifetime in deaths:
        record.died(status, lifetime)
    return record


def test_the_same_failure_many_times_in_a_row_is_hopeless() -> None:
    assert not after(*[(1, 0.1)] * (MAX_FAILURES - 1)).broken
    assert after(*[(1, 0.1)] * MAX_FAILURES).broken


def test_another_failure_or_a_longer_life_resets_the_count() -> None:
    almost = [(1, 0.1)] * (MAX_FAILURES - 1)
    assert not after(*almost, (3, 0.1)).broken
    assert not after(*almost, (1, SHORT_LIFE_SECONDS), (1, 0.1)).broken


@pytest.mark.parametrize("status", [2, 78, 126, 127])
def test_a_wrong_configuration_is_hopeless_at_once(status: int) -> None:
    assert after((status, 500.0)).broken


@pytest.mark.parametrize("status", [0, -signal.SIGKILL, -signal.SIGTERM])
def test_a_signal_from_outside_is_no_failure(status: int) -> None:
    assert not after(*[(status, 0.1)] * 50).broken


def test_a_crash_is_a_failure() -> None:
    assert after(*[(-signal.SIGSEGV, 0.1)] * MAX_FAILURES).broken


def test_the_first_restart_is_at_once_and_delays_grow_to_a_limit_until_a_long_life() -> None:
    pauses = [after(*[(-9, 0.1)] * deaths).delay for deaths in range(1, 10)]
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, MAX_DELAY_SECONDS, MAX_DELAY_SECONDS]
    assert after(*[(-9, 0.1)] * 8, (-9, SHORT_LIFE_SECONDS)).delay == 0


def test_statuses_in_words() -> None:
    assert [describe(3), describe(-9), describe(-77)] == ["status 3", "SIGKILL", "signal 77"]


async def test_one_program_can_be_stopped_alone_and_all_together() -> None:
    whole = StopRequest()
    one, other = whole.part(), whole.part()
    one.set()
    assert (bool(whole), bool(one), bool(other)) == (False, True, False)
    whole.set_immediate()
    assert whole
    assert other
    await other.wait_immediate()
    assert whole.part()
