"""Each rule about batches, on a batch of three lines that keeps or breaks it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from app.batches.results import result
from app.protocol.requests.bodies.batch import RESPONSES
from app.protocol.status import BatchStatus, Status
from app.store.batches.results import ResultRow
from app.store.batches.rows import BatchRow
from app.store.rows import ResponseRow
from tests.faults.batch_rules import KEPT, RULES
from tests.faults.batches import Batch
from tests.faults.evidence import Evidence
from tests.faults.questions import counting
from tests.faults.records import BatchStory, Json

pytestmark = pytest.mark.long

ID, AT = "batch_1", datetime.now(UTC)
NAMES = ("a", "b", "c")
USAGE = {
    "input_tokens": 2,
    "input_tokens_details": {"cached_tokens": 1},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def response(number: int) -> ResponseRow:
    question = counting(number)
    message = {"type": "message", "content": [{"text": question.answer}]}
    values: dict[str, Any] = dict.fromkeys(ResponseRow.__slots__)
    values |= {"id": f"resp_{number}", "status": Status.COMPLETED, "request": {}, "created_at": AT, "finished_at": AT}
    values |= {"output": [message], "usage": {**USAGE, "output_tokens": question.output_tokens}}
    return ResponseRow(**values)


RESPONSES_BY_ID = {f"resp_{number}": response(number) for number in (1, 2, 3)}


def ended(number: int, line: int) -> ResultRow:
    made = RESPONSES_BY_ID[f"resp_{line}"]
    return ResultRow(ID, line, number, NAMES[line - 1], "completed", made.id, made, None)


PLACES = [(1, "resp_1"), (2, "resp_2"), (3, "resp_3")]
RESULTS = (ended(2, 1), ended(1, 2), ended(3, 3))


def shown(**changes: Any) -> Json:
    tokens = sum(counting(number).output_tokens or 0 for number in (1, 2, 3))
    used = {
        "input_tokens": 6,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    counts = {"total": 3, "completed": 3, "failed": 0}
    return {"id": ID, "status": "completed", "request_counts": counts, "usage": used} | changes


def data(each: ResultRow) -> bytes:
    return result(each, RESPONSES, None).data


OUTPUT = b"".join(map(data, RESULTS))
FOLLOWED = [b'{"number":%d,%b' % (each.number or 0, data(each)[1:]) for each in (RESULTS[1], RESULTS[0], RESULTS[2])]


def batch(batch_id: str = ID, **changes: Any) -> Batch:
    values: dict[str, Any] = dict.fromkeys(BatchRow.__slots__)
    values |= {"id": batch_id, "endpoint": RESPONSES, "status": BatchStatus.COMPLETED, "total": 3, "in_progress_at": AT}
    row = BatchRow(**(values | {"metadata": {"key": "k"}} | changes.pop("row", {})))
    whole = Batch(
        row,
        shown(),
        NAMES,
        PLACES,
        RESULTS,
        dict.fromkeys((1, 2, 3), KEPT),
        {"output": OUTPUT},
        b"".join(FOLLOWED) + orjson.dumps({"batch": shown()}) + b"\n",
    )
    return replace(whole, **changes)


def story(**changes: Any) -> BatchStory:
    lines = {name: counting(number) for number, name in enumerate(NAMES, 1)}
    seen = [*map(orjson.loads, FOLLOWED), {"batch": shown()}]
    whole = BatchStory("k", RESPONSES, "24h", lines, batch_id=ID, polls=[shown()], seen=seen, files={"output": OUTPUT})
    return replace(whole, **changes)


def broken_rules(ended: Batch, its: BatchStory | None = None) -> set[str]:
    batches, its = {ended.row.id: ended}, its or story()
    evidence = Evidence([], batch_stories=[its], rows=RESPONSES_BY_ID, batches=batches)
    return {rule.__name__ for rule in RULES if any(rule(evidence))}


LINES = [*map(orjson.loads, FOLLOWED)]
BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("every_line_has_one_result", {"results": RESULTS[:2]}),
    ("every_line_has_one_result", {"results": (ended(2, 1), ended(1, 2), ended(2, 3))}),
    ("every_line_has_one_result", {"responses": [*PLACES, (3, "resp_4")]}),
    ("every_line_has_one_result", {"responses": [(1, "resp_2"), (2, "resp_1"), (3, "resp_3")]}),
    ("every_line_has_one_result", {"changes": {1: KEPT, 2: [*KEPT, "changed"], 3: KEPT}}),
    ("every_line_has_one_result", {"changes": {1: KEPT, 2: ["noted", "deleted", *KEPT], 3: KEPT}}),
    ("every_line_has_one_result", {"names": ("a", "c", "b")}),
    ("every_line_has_one_result", {"row": {"total": 4}}),
    ("batches_count_their_rows", {"shown": shown(request_counts={"total": 3, "completed": 2, "failed": 0})}),
    ("batches_count_their_rows", {"shown": shown(usage=shown()["usage"] | {"output_tokens": 1})}),
    ("files_are_what_the_rows_say", {"files": {"output": OUTPUT + data(RESULTS[0])}}),
    ("files_are_what_the_rows_say", {"files": {"output": OUTPUT[:-1]}}),
    ("files_are_what_the_rows_say", {"files": {"output": b"".join(map(data, reversed(RESULTS)))}}),
    ("files_are_what_the_rows_say", {"files": {"output": OUTPUT, "error": b""}}),
    ("files_are_what_the_rows_say", {"followed": b"".join(FOLLOWED)}),
    ("lines_have_their_answers", {"row": {"status": BatchStatus.CANCELLED}}),
    ("lines_have_their_answers", {"row": {"status": BatchStatus.FAILED}}),
    ("lines_have_their_answers", {"row": {"status": BatchStatus.IN_PROGRESS}}),
    ("lines_have_their_answers", {"results": (replace(RESULTS[0], status="failed"), *RESULTS[1:])}),
]
TOLD_OTHERWISE: list[tuple[str, dict[str, Any]]] = [
    ("clients_of_batches_are_answered", {"gave_up": True}),
    ("clients_of_batches_are_answered", {"problems": ["GET was answered with 500"]}),
    ("clients_of_batches_are_answered", {"batch_id": "batch_2"}),
    ("files_are_what_the_rows_say", {"files": {"output": OUTPUT[:-1]}}),
    ("readers_see_each_result_once", {"seen": [LINES[0], *LINES, {"batch": shown()}]}),
    ("readers_see_each_result_once", {"seen": [*LINES[::2], {"batch": shown()}]}),
    ("readers_see_each_result_once", {"seen": LINES}),
    ("batches_only_go_on", {"polls": [shown(), shown(status="in_progress")]}),
    ("batches_only_go_on", {"polls": [shown(request_counts={"total": 3, "completed": 4, "failed": 0})]}),
    ("batches_only_go_on", {"polls": [shown(output_file_id="file-other")]}),
    ("lines_have_their_answers", {"lines": {name: counting(9) for name in NAMES}}),
    ("lines_have_their_answers", {"lines": {"a": counting(1), "b": counting(2), "c": counting(4)}}),
]


def test_a_batch_that_breaks_a_promise_is_noticed_and_so_is_what_its_client_was_told_otherwise() -> None:
    assert broken_rules(batch()) == set()
    for rule, changes in BROKEN:
        assert rule in broken_rules(batch(**changes)), changes
    for rule, changes in TOLD_OTHERWISE:
        assert rule in broken_rules(batch(), story(**changes)), changes
