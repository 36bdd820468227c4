"""Limits as numbers: what fits, how long to wait, what is refilled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.errors import ErrorType, LimitReached
from app.protocol.limits import (
    CHARGED,
    DRAIN_SECONDS,
    LINES_PART,
    MAX_WAIT_SECONDS,
    UNKNOWN_WAIT_SECONDS,
    Allowance,
    LimitKind,
    LimitState,
    Reservation,
    Shortage,
    admit,
    admit_line,
    charged,
    decayed,
    drain_after,
    never_fits,
    unbiased_drain,
)

SMALL = Reservation(30, 20, 100)
FREED = sorted(set(LimitKind) - CHARGED - {LimitKind.STORED_BYTES}, key=str)
GAUGES = (LimitKind.QUEUED_RESPONSES, LimitKind.QUEUED_BYTES, LimitKind.UNFINISHED_RESPONSES)


def limit(kind: LimitKind, value: int, used: float = 0, model: str = "*", **more: float) -> LimitState:
    return LimitState("proj_a", model, kind, value, used, **more)


def refusal(*states: LimitState, reserved: Reservation = SMALL) -> Shortage:
    found = admit(states, "proj_a", "m", reserved)
    assert isinstance(found, Shortage)
    return found


AMOUNTS_OF_SMALL = {
    LimitKind.TOKENS_PER_MINUTE: 50,
    LimitKind.TOKENS_PER_DAY: 50,
    LimitKind.QUEUED_RESPONSES: 1,
    LimitKind.QUEUED_BYTES: 100,
    LimitKind.UNFINISHED_RESPONSES: 1,
    LimitKind.STORED_BYTES: 100,
}


@pytest.mark.parametrize("kind", sorted(set(LimitKind) - CHARGED, key=str))
def test_a_request_takes_its_amount_and_fits_to_the_last_unit(kind: LimitKind) -> None:
    amount = AMOUNTS_OF_SMALL[kind]
    after = admit([limit(kind, 1000, 1000 - amount)], "proj_a", "m", SMALL)
    assert isinstance(after, list) and after[0].used == 1000 and after[0].remaining == 0
    short = refusal(limit(kind, 1000, 1000 - amount + 1))
    assert (short.limit.kind, short.requested) == (kind, amount)


def test_waiting_makes_no_room_for_what_is_stored() -> None:
    short = refusal(limit(LimitKind.STORED_BYTES, 1000, 950, drained_per_second=100))
    assert (
        short.wait_seconds is None and "Delete files, responses or conversations" in LimitReached(short).error.message
    )
    too_large = refusal(limit(LimitKind.STORED_BYTES, 99))
    assert "never fits" in LimitReached(too_large).error.message


@pytest.mark.parametrize("kind", sorted(CHARGED, key=str))
def test_requests_are_charged_one_by_one_to_the_last_unit_and_not_reserved(kind: LimitKind) -> None:
    full = [limit(kind, 10, 10), limit(kind, 10, 11)]
    assert admit(full, "proj_a", "m", SMALL) == full
    first, second, third, fourth = charged(limit(kind, 60, 57.5), 4)
    assert first == limit(kind, 60, 58.5) and second == limit(kind, 60, 59.5)
    assert isinstance(third, Shortage) and third == fourth
    assert (third.requested, third.wait_seconds, third.allowance) == (1, pytest.approx(0.5), Allowance(second, None))


def test_a_limit_covers_its_project_and_model_alone() -> None:
    full = [limit(LimitKind.QUEUED_RESPONSES, 1, 1, model="other")]
    assert admit(full, "proj_a", "m", SMALL) == full
    assert admit([limit(LimitKind.QUEUED_RESPONSES, 1, 1)], "proj_b", "m", SMALL) == [
        limit(LimitKind.QUEUED_RESPONSES, 1, 1)
    ]
    refusal(limit(LimitKind.QUEUED_RESPONSES, 1, 1, model="m"))


def test_a_refused_request_takes_nothing_of_the_limits_that_have_room() -> None:
    states = [limit(LimitKind.REQUESTS_PER_MINUTE, 10), limit(LimitKind.TOKENS_PER_MINUTE, 50, 1)]
    assert refusal(*states).allowance == Allowance(*states)


def test_the_longest_wait_is_told() -> None:
    states = limit(LimitKind.TOKENS_PER_MINUTE, 60, 60), limit(LimitKind.TOKENS_PER_DAY, 50, 1, day_seconds=7200)
    assert refusal(*states).wait_seconds == 7200
    too_large = limit(LimitKind.TOKENS_PER_MINUTE, 49)
    assert refusal(*states, too_large).wait_seconds is None


@given(st.floats(0, 2000), st.integers(50, 2000))
def test_after_the_wait_a_request_fits_and_not_before(used: float, value: int) -> None:
    state = limit(LimitKind.TOKENS_PER_MINUTE, value, used)
    if (wait := state.wait_seconds(SMALL)) is None or state.has_room(SMALL):
        return
    after = decayed(used, value, wait)
    assert after + 50 == pytest.approx(value)
    assert decayed(used, value, wait * 0.9) + 50 > value


@pytest.mark.parametrize("kind", GAUGES)
def test_the_wait_for_a_place_follows_from_the_speed_of_draining(kind: LimitKind) -> None:
    amount = 100 if kind is LimitKind.QUEUED_BYTES else 1
    full = 10 * amount
    assert refusal(limit(kind, full, full)).wait_seconds == UNKNOWN_WAIT_SECONDS
    assert refusal(limit(kind, full, full, drained_per_second=amount / 20)).wait_seconds == pytest.approx(20)
    assert refusal(limit(kind, full, full, drained_per_second=1e-6)).wait_seconds == MAX_WAIT_SECONDS
    assert refusal(limit(kind, full, full, drained_per_second=1e6)).wait_seconds == 1


def test_the_speed_of_draining_is_found_within_a_tenth() -> None:
    """Two leave the queue each second; looks come at uneven times."""
    drain, last, limit_age = 0.0, 0.0, 0.0
    for pause in (1.0, 7.0, 0.3, 20.0, 2.0, 5.0) * 3:
        limit_age += pause
        leaving = [last + (number + 0.5) / 2 for number in range(round(pause * 2))]
        last = limit_age
        recent = sum(math.exp(-(limit_age - at) / DRAIN_SECONDS) for at in leaving)
        drain = drain_after(drain, pause, recent)
        assert unbiased_drain(drain, limit_age) == pytest.approx(2, rel=0.1)
    assert drain_after(1e-8, 1e6, 0) == 0


@pytest.mark.parametrize(
    ("kind", "type_", "code"),
    [
        (LimitKind.UNFINISHED_RESPONSES, ErrorType.REQUESTS, "rate_limit_exceeded"),
        (LimitKind.TOKENS_PER_MINUTE, ErrorType.TOKENS, "rate_limit_exceeded"),
        (LimitKind.TOKENS_PER_DAY, ErrorType.QUOTA, "insufficient_quota"),
        (LimitKind.QUEUED_RESPONSES, ErrorType.REQUESTS, "rate_limit_exceeded"),
    ],
)
def test_the_error_says_which_limit_its_value_and_its_scope(kind: LimitKind, type_: ErrorType, code: str) -> None:
    error = LimitReached(refusal(limit(kind, 100, 100, day_seconds=3600))).error
    assert (error.type, error.code) == (type_, code)
    for part in (kind.value, "100", "'proj_a'", "all models", "try again in"):
        assert part in error.message


def test_a_request_that_never_fits_is_told_so() -> None:
    raised = LimitReached(refusal(limit(LimitKind.TOKENS_PER_DAY, 49, model="m")))
    assert raised.shortage.wait_seconds is None
    assert "never fits" in raised.error.message and "the model 'm'" in raised.error.message
    assert raised.error.code == "rate_limit_exceeded"


AMOUNTS = st.builds(Reservation, st.integers(0, 60), st.integers(0, 60), st.integers(1, 120))


@st.composite
def limits_of_a_project(draw: st.DrawFn) -> list[LimitState]:
    kinds = draw(st.lists(st.sampled_from(FREED), min_size=1, unique=True))
    return [limit(kind, draw(st.integers(1, 200)), model=draw(st.sampled_from(("*", "m", "other")))) for kind in kinds]


@given(limits_of_a_project(), st.lists(st.tuples(st.booleans(), AMOUNTS), max_size=40))
def test_lines_leave_a_part_of_each_limit_to_single_requests(
    states: list[LimitState], requests: list[tuple[bool, Reservation]]
) -> None:
    """But for a line that is the first to take something, and needs more than the part of lines."""
    for is_line, reserved in requests:
        after = (admit_line if is_line else admit)(states, "proj_a", "m", reserved)
        if not isinstance(after, list):
            continue
        for old, new in zip(states, after, strict=True):
            assert new.used <= new.value
            if is_line and new.used > old.used > 0:
                assert new.used <= LINES_PART * new.value
        states = after


@given(limits_of_a_project(), AMOUNTS)
def test_every_line_fits_once_nothing_is_taken_unless_it_never_fits(
    states: list[LimitState], reserved: Reservation
) -> None:
    fits = admit_line(states, "proj_a", "m", reserved) is not None
    full = [replace(state, used=float(state.value)) for state in states]
    assert fits == (never_fits(full, "proj_a", "m", reserved) is None)


@given(limits_of_a_project(), st.lists(AMOUNTS, max_size=30), st.data())
def test_a_batch_ends_whatever_order_its_lines_end_in(
    states: list[LimitState], lines: list[Reservation], data: st.DataObject
) -> None:
    """Lines begin in their order, as many as fit; one that never fits is left out."""
    left, running = [each for each in lines if never_fits(states, "proj_a", "m", each) is None], list[Reservation]()
    while left:
        while left and (after := admit_line(states, "proj_a", "m", left[0])) is not None:
            states = after
            running.append(left.pop(0))
        assert running, f"{left[0]} waits for nobody"
        ends = running.pop(data.draw(st.integers(0, len(running) - 1)))
        gives = (state.take(ends).used - state.used if state.covers("proj_a", "m") else 0 for state in states)
        states = [replace(state, used=state.used - given) for state, given in zip(states, gives, strict=True)]


def test_lines_may_take_all_that_may_be_stored() -> None:
    """No wait frees any: a line that left a part of it would wait until its batch's window ends."""
    assert admit_line([limit(LimitKind.STORED_BYTES, 1000, 900)], "proj_a", "m", SMALL) is not None
    assert admit_line([limit(LimitKind.STORED_BYTES, 1000, 901)], "proj_a", "m", SMALL) is None
