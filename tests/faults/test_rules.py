"""Each rule of the checker on the smallest evidence that keeps or breaks it; `test_checker` uses real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.limits import ALL_MODELS, LimitKind, LimitState
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.rows import ResponseRow
from tests.faults.accounts import Entry, Usage, charged, used
from tests.faults.audit import Transition, Write
from tests.faults.checker import check
from tests.faults.evidence import Evidence
from tests.faults.questions import counting
from tests.faults.records import Form, Poll, ReaderRecord, Story

pytestmark = pytest.mark.long

ID, AT = "resp_1", 1000.0
QUESTION = counting(3)
EVENTS = [frames.encode({"type": "response.output_text.delta", "sequence_number": number}) for number in range(4)]
OTHER = frames.encode({"type": "response.output_text.delta", "sequence_number": 1, "delta": "other"})
LOG = {ID: (Chunk(ID, 0, 3, 0, (), b"".join(EVENTS)),)}
QUEUED, RUNS, DONE = Status.QUEUED, Status.IN_PROGRESS, Status.COMPLETED


def row(status: Status, text: str = "", **values: Any) -> ResponseRow:
    total = (QUESTION.input_tokens or 0) + (QUESTION.output_tokens or 0)
    tokens = {"input_tokens": QUESTION.input_tokens, "output_tokens": QUESTION.output_tokens, "total_tokens": total}
    empty = dict.fromkeys(ResponseRow.__slots__)
    mine = {"id": ID, "status": status, "output": [{"content": [{"text": text}]}], "usage": tokens}
    return ResponseRow(**(empty | mine | {"request": {"metadata": {"key": "1-1"}, "input": []}} | values))


def story(**more: Any) -> Story:
    return replace(Story("1-1", False, Form.BACKGROUND_STREAM, QUESTION, AT, response_id=ID), **more)


def reader(events: list[bytes], arrivals: list[float] | None = None, **more: Any) -> ReaderRecord:
    return ReaderRecord(frames=events, arrivals=arrivals or [AT] * len(events), **more)


def broken_rules(**evidence: Any) -> set[str]:
    return {violation.rule for violation in check(Evidence(**({"stories": []} | evidence)))}


def steps(*them: tuple[Any, ...]) -> dict[str, list[Transition]]:
    return {ID: [Transition(ID, *step) for step in them]}


def polls(*them: tuple[Status, str]) -> list[Story]:
    return [story(polls=[Poll(status, text, AT + at, AT + at) for at, (status, text) in enumerate(them)])]


def writes(*seconds: float) -> dict[str, list[Write]]:
    return {ID: [Write(0, 1, 0, None, AT - 0.1), *(Write(2, 3, 1, None, AT + each) for each in seconds)]}


INSERTED = (None, QUEUED, 0, None, None, None)
CLAIMED = (QUEUED, RUNS, 1, 0, "a", None)
ENDED = (RUNS, DONE, 1, 1, None, "a")
SEEN = {"stories": [story(readers=[reader(EVENTS, [AT, AT, AT + 1, AT + 1], terminal=True)])]}
SEEN_LATE = {"stories": [story(readers=[reader(EVENTS[2:], [AT + 2, AT + 2], after=1, terminal=True)])]}
LINE = "worker.1: 2026-11-21T11:38:46.700Z ERROR longhaul.runner: "
TRACEBACK = "maintenance.1: Traceback (most recent call last): "
DURABLE, LEGAL, LOGGED = "durable_before_visible", "transitions_are_legal", "readers_see_the_log"
BACK, CRASHES = "statuses_never_go_back", "nothing_crashes"


def resumed(*events: bytes) -> dict[str, Any]:
    return {"stories": [story(readers=[reader(list(events))])], "logs": LOG}


def undone(*them: tuple[Status, str], crash: float) -> dict[str, Any]:
    return {"stories": polls(*them), "crashes": [AT + crash]}


def logged(line: str) -> dict[str, Any]:
    return {"error_lines": [line]}


KEPT: list[tuple[str, dict[str, Any]]] = [
    (DURABLE, SEEN | {"writes": writes(0.5, 9)}),
    (DURABLE, SEEN_LATE | {"writes": writes(1)}),
    (LEGAL, {"transitions": steps(INSERTED, CLAIMED, ENDED)}),
    (LOGGED, resumed(*EVENTS)),
    (BACK, undone((RUNS, ""), (QUEUED, ""), crash=0.5)),
    ("accepted_responses_exist", {"stories": [story(delete_sent=True)]}),
    (CRASHES, logged(f"{TRACEBACK}KeyboardInterrupt")),
    (CRASHES, logged(f"{TRACEBACK}SystemExit: 0")),
    ("stored_bytes_are_those_of_the_rows", {"stored": {"p": (10, 10)}}),
]
BROKEN: list[tuple[str, dict[str, Any]]] = [
    (DURABLE, SEEN | {"writes": writes(1.5)}),
    ("only_owners_write_chunks", {"writes": {ID: [Write(0, 1, 1, "was written while no worker owned it", AT)]}}),
    (LEGAL, {"transitions": steps(INSERTED, (QUEUED, RUNS, 1, 0, "a", None, 1, 2))}),
    (LEGAL, {"transitions": steps(INSERTED, CLAIMED, (RUNS, RUNS, 2, 1, "b", "a"))}),
    (LEGAL, {"transitions": steps(INSERTED, CLAIMED, ENDED, (DONE, RUNS, 2, 1, "b", None))}),
    (LEGAL, {"transitions": steps(CLAIMED, ENDED)}),
    (LEGAL, {"transitions": steps(INSERTED, ENDED)}),
    (LOGGED, resumed(EVENTS[0], OTHER)),
    (LOGGED, resumed(*EVENTS[:2])),
    (BACK, undone((RUNS, ""), (QUEUED, ""), crash=-9)),
    (BACK, undone((DONE, ""), (RUNS, ""), crash=0.5)),
    (BACK, {"stories": polls((RUNS, "1 2"), (RUNS, "1 3"))}),
    ("accepted_responses_exist", {"stories": [story()]}),
    *(("nothing_is_left", {name: ["x"]}) for name in ("left_in_redis", "unknown_workers", "busy", "left_behind")),
    (CRASHES, logged(f"{TRACEBACK}CancelledError")),
    (CRASHES, logged(f"{LINE}it went wrong | ValueError")),
    ("stored_bytes_are_those_of_the_rows", {"stored": {"p": (9, 10)}}),
]


def test_evidence_that_breaks_a_promise_is_noticed() -> None:
    assert broken_rules() == set()
    assert [each for rule, each in KEPT if rule in broken_rules(**each)] == []
    assert [each for rule, each in BROKEN if rule not in broken_rules(**each)] == []


def test_a_gap_in_the_log_is_noticed() -> None:
    gap = (Chunk(ID, 0, 1, 0, (), b"".join(EVENTS[:2])), Chunk(ID, 3, 4, 1, (), b"".join(EVENTS[2:])))
    found = check(Evidence([], rows={ID: row(RUNS)}, logs={ID: gap}))
    assert "events 3-4 follow event 1" in {each.finding for each in found}


# -- what projects use, and their limits -----------------------------------------------------------------------

USAGE: Json = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 1},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 8,
}
NEW = Entry("r1", "p", "k", None, QUEUED, 100, None)
TAKEN = replace(NEW, before=QUEUED, after=RUNS)
OVER = replace(TAKEN, before=RUNS, after=DONE, usage=USAGE)
CANCELLED = replace(OVER, after=Status.CANCELLED, usage=None)
LIFE = [NEW, TAKEN, OVER]
QUEUE, BYTES, UNFINISHED = LimitKind.QUEUED_RESPONSES, LimitKind.QUEUED_BYTES, LimitKind.UNFINISHED_RESPONSES


def others(*entries: Entry) -> list[Entry]:
    """The same of another response."""
    return [replace(entry, response_id="r2") for entry in entries]


def broken_by(accounts: list[Entry], kind: LimitKind = QUEUE, value: int = 1000, taken: int = 0) -> set[str]:
    limits = [LimitState("p", ALL_MODELS, kind, value, taken)]
    return broken_rules(accounts=accounts, ledger=used(accounts, {}), limits=limits)


def test_the_ledger_is_compared_with_the_usage_of_all_ends_to_the_token() -> None:
    twice = [*LIFE, *others(*LIFE)]
    assert used(twice, {}) == {("p", "k"): Usage(2, 6, 2, 10, 4)}
    assert broken_by(twice) == set()
    for ledger in ({}, {("p", "k"): Usage(1, 3, 1, 4, 2)}, {("p", "other"): Usage(1, 3, 1, 5, 2)}):
        assert broken_rules(accounts=LIFE, ledger=ledger) == {"the_ledger_is_the_sum_of_all_usage"}
    repeated = Write(2, 3, 1, None, AT, 4, 0, 5)
    log = {"r1": [Write(0, 1, 1, None, AT, 8, 40), repeated, repeated]}  # of what ran and has no usage
    assert charged([NEW, TAKEN, CANCELLED], log) == {"p": 40 + 3}
    assert used([NEW, TAKEN, CANCELLED], log) == {("p", "k"): Usage(1, 40, 5, 3, 0)}
    assert charged([NEW, replace(CANCELLED, before=QUEUED)], {"r1": []}) == {}
    assert charged(LIFE, log) == {"p": 8}


def test_more_than_a_limit_allows_is_noticed_and_so_is_what_is_taken_in_the_end() -> None:
    left, exceeded = {"ended_responses_reserve_nothing"}, {"limits_are_never_exceeded"}
    both = [NEW, *others(NEW), *LIFE[1:], *others(*LIFE[1:])]
    for kind, value in ((QUEUE, 1), (BYTES, 199), (UNFINISHED, 1)):
        assert broken_by(both, kind, value) == exceeded, "for a moment"
        assert broken_by([*LIFE, *others(*LIFE)], kind, value) == set()
        assert broken_by(LIFE, kind, taken=1) == left
    for taken in (7, 8, 9):
        assert broken_by(LIFE, LimitKind.TOKENS_PER_DAY, taken=taken) == (left if taken != 8 else set())
