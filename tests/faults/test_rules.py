"""Each rule of the checker on the smallest evidence that breaks it; `test_checker` uses real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.status import Status
from app.store.rows import ResponseRow
from tests.faults import checker
from tests.faults.audit import Transition, Write
from tests.faults.checker import check
from tests.faults.evidence import Evidence
from tests.faults.questions import counting
from tests.faults.records import Form, Poll, ReaderRecord, Story

pytestmark = pytest.mark.long

ID = "resp_1"
EVENTS = [frames.encode({"type": "response.output_text.delta", "sequence_number": number}) for number in range(4)]
AT = 1000.0


def story(*readers: ReaderRecord) -> Story:
    return Story("1-1", False, Form.BACKGROUND_STREAM, counting(3), AT, response_id=ID, readers=list(readers))


def broken_rules(evidence: Evidence) -> set[str]:
    return {violation.rule for violation in check(evidence)}


def transitions(
    *steps: tuple[Status | None, Status | None, int, int | None, str | None, str | None],
) -> dict[str, list[Transition]]:
    return {ID: [Transition(ID, *step) for step in steps]}


INSERTED = (None, Status.QUEUED, 0, None, None, None)
CLAIMED = (Status.QUEUED, Status.IN_PROGRESS, 1, 0, "a", None)
DONE = (Status.IN_PROGRESS, Status.COMPLETED, 1, 1, None, "a")


def test_empty_evidence_has_no_violations() -> None:
    assert check(Evidence([])) == []


def test_a_doorbell_that_does_not_arrive_is_noticed() -> None:
    assert broken_rules(Evidence([], doorbell_failures=["worker.1 does not publish"])) == {"doorbells_arrive"}
    assert broken_rules(Evidence([], doorbell_failures=["api.1 does not receive"])) == {"doorbells_arrive"}


def test_an_event_that_is_seen_before_its_commit_is_noticed() -> None:
    seen = ReaderRecord(frames=EVENTS, arrivals=[AT, AT, AT + 1, AT + 1], terminal=True)
    writes = [Write(0, 1, 0, None, AT - 0.1), Write(2, 3, 1, None, AT + 1.5)]
    assert "durable_before_visible" in broken_rules(Evidence([story(seen)], writes={ID: writes}))
    in_time = [Write(0, 1, 0, None, AT - 0.1), Write(2, 3, 1, None, AT + 0.5), Write(2, 3, 1, None, AT + 9)]
    assert "durable_before_visible" not in broken_rules(Evidence([story(seen)], writes={ID: in_time}))


def test_a_reader_that_starts_late_breaks_no_rule() -> None:
    seen = ReaderRecord(after=1, frames=EVENTS[2:], arrivals=[AT + 2, AT + 2], terminal=True)
    writes = [Write(0, 1, 0, None, AT), Write(2, 3, 1, None, AT + 1)]
    assert "durable_before_visible" not in broken_rules(Evidence([story(seen)], writes={ID: writes}))


def test_a_chunk_written_by_a_worker_that_is_not_the_owner_is_noticed() -> None:
    writes = {ID: [Write(0, 1, 1, "was written while no worker owned it", AT)]}
    assert broken_rules(Evidence([], writes=writes)) == {"only_owners_write_chunks"}


def test_legal_transitions_break_no_rule() -> None:
    assert broken_rules(Evidence([], transitions=transitions(INSERTED, CLAIMED, DONE))) == set()


def test_illegal_transitions_are_noticed() -> None:
    stolen = (Status.IN_PROGRESS, Status.IN_PROGRESS, 2, 1, "b", "a")
    revived = (Status.COMPLETED, Status.IN_PROGRESS, 2, 1, "b", None)
    too_new = (Status.QUEUED, Status.IN_PROGRESS, 1, 0, "a", None, 1, 2)
    for steps in (
        (INSERTED, too_new),
        (INSERTED, CLAIMED, stolen),
        (INSERTED, CLAIMED, DONE, revived),
        (CLAIMED, DONE),
        (INSERTED, DONE),
    ):
        assert broken_rules(Evidence([], transitions=transitions(*steps))) == {"transitions_are_legal"}


def test_a_gap_in_the_log_is_noticed() -> None:
    first, second = b"".join(EVENTS[:2]), b"".join(EVENTS[2:])
    whole = [Chunk(ID, 0, 1, 0, (), first), Chunk(ID, 3, 4, 1, (), second)]
    found = checker.logs_are_complete(Evidence([], rows={ID: None}, logs={ID: tuple(whole)}))  # type: ignore[dict-item]
    assert next(found)[1] == "events 3-4 follow event 1"


def test_a_reader_that_saw_another_event_than_the_log_has_is_noticed() -> None:
    other = frames.encode({"type": "response.output_text.delta", "sequence_number": 1, "delta": "other"})
    chunk = Chunk(ID, 0, 3, 0, (), b"".join(EVENTS))
    for saw in ([EVENTS[0], other], EVENTS[:2]):  # the second list ends too early
        evidence = Evidence([story(ReaderRecord(frames=saw, arrivals=[AT] * 2))], logs={ID: (chunk,)})
        assert "readers_see_the_log" in broken_rules(evidence)
    whole = Evidence([story(ReaderRecord(frames=EVENTS, arrivals=[AT] * 4))], logs={ID: (chunk,)})
    assert "readers_see_the_log" not in broken_rules(whole)


def test_a_status_that_goes_back_and_a_text_that_shrinks_are_noticed() -> None:
    for polls in (
        [Poll(Status.IN_PROGRESS, "", AT, AT), Poll(Status.QUEUED, "", AT, AT)],
        [Poll(Status.IN_PROGRESS, "1 2", AT, AT), Poll(Status.IN_PROGRESS, "1 3", AT, AT)],
    ):
        polled = story()
        polled.polls = polls
        assert "statuses_never_go_back" in broken_rules(Evidence([polled]))


def test_only_a_crash_of_postgres_takes_a_claim_back_and_nothing_takes_an_end_back() -> None:
    def rules(*statuses: Status, crashed: float) -> set[str]:
        polled = story()
        polled.polls = [Poll(status, "", AT + at, AT + at) for at, status in enumerate(statuses)]
        return broken_rules(Evidence([polled], crashes=[crashed])) & {"statuses_never_go_back"}

    assert rules(Status.IN_PROGRESS, Status.QUEUED, crashed=AT + 0.5) == set()
    assert rules(Status.IN_PROGRESS, Status.QUEUED, crashed=AT - 9) != set()
    assert rules(Status.COMPLETED, Status.IN_PROGRESS, crashed=AT + 0.5) != set()


def test_a_damaged_response_may_fail_or_end_as_if_nothing_had_happened() -> None:
    def rules(row: ResponseRow, **more: Any) -> set[str]:
        reader = ReaderRecord(frames=EVENTS[:2], arrivals=[AT] * 2, problems=["its log cannot be read"])
        evidence = Evidence([replace(story(reader), **more)], rows={ID: row}, damaged={ID: "1-1"})
        return broken_rules(evidence)

    assert rules(a_row(Status.FAILED, [])) == set()
    assert rules(a_row(Status.COMPLETED, [counting(3).answer])) == set()
    assert rules(a_row(Status.COMPLETED, ["another text"])) == {"damaged_responses_end"}
    assert rules(a_row(Status.FAILED, []), gave_up=True) == {"damaged_responses_end"}


def test_a_log_line_about_a_damaged_response_is_no_unforeseen_error() -> None:
    line = f"worker.1: ERROR longhaul.runner: {ID}: its request cannot be read"
    assert broken_rules(Evidence([], error_lines=[line])) == {"nothing_crashes"}
    assert broken_rules(Evidence([story()], damaged={ID: "1-1"}, error_lines=[line])) == set()


def a_row(status: Status, texts: list[str]) -> ResponseRow:
    question = counting(3)
    assert question.input_tokens is not None and question.output_tokens is not None
    total = question.input_tokens + question.output_tokens
    tokens = {"input_tokens": question.input_tokens, "output_tokens": question.output_tokens, "total_tokens": total}
    values = dict.fromkeys(ResponseRow.__slots__)
    values |= {"status": status, "output": [{"content": [{"text": each}]} for each in texts], "usage": tokens}
    return ResponseRow(**values)  # type: ignore[arg-type]


def test_an_accepted_response_that_is_gone_is_noticed() -> None:
    assert "accepted_responses_exist" in broken_rules(Evidence([story()]))


def test_what_is_left_behind_is_noticed() -> None:
    for left in ({"left_in_redis": ["x"]}, {"unknown_workers": ["x"]}, {"busy": ["x"]}, {"left_behind": ["x"]}):
        assert broken_rules(Evidence([], **left)) == {"nothing_is_left"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "rules"),
    [
        ("CancelledError", {"nothing_crashes"}),
        ("KeyboardInterrupt", set()),
        ("KeyboardInterrupt: ", set()),
        ("SystemExit: 0", set()),
    ],
)
def test_a_traceback_is_noticed_unless_a_signal_alone_caused_it(error: str, rules: set[str]) -> None:
    line = f"maintenance.1: Traceback (most recent call last): {error}"
    assert broken_rules(Evidence([], error_lines=[line])) == rules


def test_an_unforeseen_error_of_the_product_is_noticed_and_a_traceback_of_vllm_is_not() -> None:
    ours = "worker.1: 2026-11-21T11:38:46.700Z ERROR longhaul.worker: it went wrong | ValueError"
    assert broken_rules(Evidence([], error_lines=[ours])) == {"nothing_crashes"}
    theirs = (
        "worker.1: (MainProcess pid=3269) ERROR 11-21 14:32:03 [async_llm.py:906] Traceback (most recent call last):"
    )
    assert broken_rules(Evidence([], error_lines=[theirs])) == set()
