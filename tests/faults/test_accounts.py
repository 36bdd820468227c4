"""Each rule about projects, on the smallest history that keeps or breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.protocol.limits import ALL_MODELS, LimitKind, LimitState
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.rows import ResponseRow
from tests.faults.accounts import PASSED_SECONDS, Entry, Ledger, Usage, charged, used
from tests.faults.audit import Write
from tests.faults.checker import check
from tests.faults.evidence import Evidence
from tests.faults.project_rules import conversations_have_what_was_said

pytestmark = pytest.mark.long

AT = 1000.0
USAGE: Json = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 1},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 8,
}
INSERTED = Entry("r1", "p", "k", ("q", "p", 5), (1, 1), None, Status.QUEUED, False, 100, None, AT, AT)
SENT = replace(INSERTED, before=Status.QUEUED, is_sent=True, at=AT + 1)
CLAIMED = replace(SENT, after=Status.IN_PROGRESS, at=AT + 2)
ENDED = replace(CLAIMED, before=Status.IN_PROGRESS, after=Status.COMPLETED, usage=USAGE, at=AT + 3)
CANCELLED = replace(ENDED, after=Status.CANCELLED, usage=None)
LIFE = [INSERTED, SENT, CLAIMED, ENDED]


def other(entry: Entry, places: int = 0) -> Entry:
    """The same of a response that is so many places behind it."""
    rank, position = entry.place
    return replace(entry, response_id="r2", place=(rank + places, position + places))


def broken_rules(accounts: list[Entry], ledger: Ledger | None = None, *limits: LimitState) -> set[str]:
    ledger = used(accounts, {}) if ledger is None else ledger
    evidence = Evidence([], accounts=accounts, ledger=ledger, limits=list(limits))
    return {violation.rule for violation in check(evidence)}


def limit(kind: LimitKind, value: int, used: float = 0.0) -> LimitState:
    return LimitState("p", ALL_MODELS, kind, value, used)


def test_the_sum_of_usage_is_that_of_all_ends() -> None:
    twice = [*LIFE, *map(other, LIFE)]
    assert used(twice, {}) == {("p", "k"): Usage(2, 6, 2, 10, 4)}
    assert broken_rules(twice) == set()


@pytest.mark.parametrize("ledger", [{}, {("p", "k"): Usage(1, 3, 1, 4, 2)}, {("p", "other"): Usage(1, 3, 1, 5, 2)}])
def test_a_ledger_that_is_off_by_one_token_or_has_another_key_is_noticed(ledger: Ledger) -> None:
    assert broken_rules(LIFE, ledger) == {"the_ledger_is_the_sum_of_all_usage"}


def test_what_ran_and_has_no_usage_is_charged_with_the_tokens_of_its_log() -> None:
    repeated = Write(2, 3, 1, None, AT, 4, 0, 5)
    writes = [Write(0, 1, 1, None, AT, 8, 40), repeated, repeated]
    assert charged([INSERTED, SENT, CLAIMED, CANCELLED], {"r1": writes}) == {"p": 40 + 3}
    assert used([INSERTED, SENT, CLAIMED, CANCELLED], {"r1": writes}) == {("p", "k"): Usage(1, 40, 5, 3, 0)}
    assert charged([INSERTED, replace(CANCELLED, before=Status.QUEUED)], {"r1": []}) == {}
    assert charged(LIFE, {"r1": writes}) == {"p": 8}


def test_a_response_that_another_project_sees_is_noticed() -> None:
    found = check(Evidence([], ledger={}, visible=["r1 is a 200 to another project"]))
    assert {violation.rule for violation in found} == {"projects_see_their_own_alone"}


def test_stored_bytes_that_are_not_those_of_the_rows_are_noticed() -> None:
    for counted, broken in ((10, set()), (9, {"stored_bytes_are_those_of_the_rows"})):
        found = check(Evidence([], ledger={}, stored={"p": (counted, 10)}))
        assert {violation.rule for violation in found} == broken


def test_an_item_that_a_conversation_lacks_or_should_not_have_is_noticed() -> None:
    def findings(status: Status, *there: str) -> int:
        values: dict[str, Any] = dict.fromkeys(ResponseRow.__slots__)
        values |= {"id": "r1", "status": status, "conversation_id": "c", "output": [{"id": "out"}]}
        row = ResponseRow(**(values | {"request": {"input": [{"id": "in"}]}}))
        evidence = Evidence([], rows={"r1": row}, conversations={"c": {"earlier", *there}})
        return len(list(conversations_have_what_was_said(evidence)))

    for status in (Status.COMPLETED, Status.INCOMPLETE):
        assert [findings(status, *there) for there in (("in", "out"), ("in",), ("out",), ())] == [0, 1, 1, 1]
    for status in (Status.FAILED, Status.CANCELLED):
        assert [findings(status, *there) for there in (("in", "out"), ("in",), ("out",), ())] == [1, 1, 1, 0]


def test_a_place_that_is_taken_in_the_end_is_noticed() -> None:
    for kind in (LimitKind.QUEUED_RESPONSES, LimitKind.QUEUED_BYTES, LimitKind.UNFINISHED_RESPONSES):
        assert broken_rules(LIFE, None, limit(kind, 1000)) == set()
        assert broken_rules(LIFE, None, limit(kind, 1000, used=1)) == {"ended_responses_reserve_nothing"}


def test_tokens_of_the_day_that_are_not_those_that_were_used_are_noticed() -> None:
    for taken in (7, 8, 9):
        rules = {"ended_responses_reserve_nothing"} if taken != 8 else set()
        assert broken_rules(LIFE, None, limit(LimitKind.TOKENS_PER_DAY, 1000, used=taken)) == rules


def test_more_than_a_limit_allows_is_noticed_also_if_it_was_for_a_moment() -> None:
    both = [INSERTED, other(INSERTED), *LIFE[1:], *map(other, LIFE[1:])]
    for kind, value in (
        (LimitKind.QUEUED_RESPONSES, 1),
        (LimitKind.QUEUED_BYTES, 199),
        (LimitKind.UNFINISHED_RESPONSES, 1),
    ):
        assert broken_rules(both, None, limit(kind, value)) == {"limits_are_never_exceeded"}
        assert broken_rules([*LIFE, *map(other, LIFE)], None, limit(kind, value)) == set()


def test_a_line_that_takes_what_is_left_to_single_requests_is_noticed() -> None:
    a_line = replace(other(INSERTED), is_line=True)
    crowded = {"lines_leave_room_to_single_requests"}
    for kind, enough in ((LimitKind.QUEUED_RESPONSES, 3), (LimitKind.QUEUED_BYTES, 267)):
        assert broken_rules([INSERTED, a_line], None, limit(kind, enough)) == set()
        assert broken_rules([INSERTED, a_line], None, limit(kind, enough - 1)) == crowded
        assert broken_rules([INSERTED, other(INSERTED)], None, limit(kind, enough - 1)) == set(), "no line"
    alone = [replace(INSERTED, is_line=True)]
    assert broken_rules(alone, None, limit(LimitKind.QUEUED_RESPONSES, 1)) == set(), "it needs more than its part"


def test_a_response_that_is_sent_while_an_older_one_of_its_flow_goes_on_waiting_is_noticed() -> None:
    late = AT + 2 * PASSED_SECONDS
    passing = [INSERTED, other(INSERTED, 1), replace(other(SENT, 1), began=late, at=late)]
    rule = {"flows_keep_their_order"}
    assert broken_rules(passing) == rule
    assert broken_rules([*passing, replace(SENT, at=late + 2 * PASSED_SECONDS)]) == rule
    assert broken_rules([*passing, replace(SENT, at=late + 1)]) == set(), "the same dispatch, or the next"
    held_up = replace(other(SENT, 1), began=AT, at=late)
    assert broken_rules([*passing[:2], held_up]) == set(), "its transaction began before the older one could be seen"
    claimed = replace(other(CLAIMED, 1), before=Status.QUEUED, began=late, at=late)
    assert broken_rules([*passing[:2], claimed]) == set(), "by a message that the suite has sent"
    cancelled = replace(CANCELLED, before=Status.QUEUED, is_sent=False, at=late - 1)
    assert broken_rules([*passing[:2], cancelled, passing[2]]) == set(), "it waited no longer"
    assert (
        broken_rules([INSERTED, replace(other(INSERTED, 1), flow=("q", "p", 1), is_sent=True, began=late, at=late)])
        == set()
    )
