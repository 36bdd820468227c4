"""The rules about batches: every line has exactly one result, and counts, files and readers say what the rows say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import orjson

from app.batches.results import result
from app.batches.writer import ended_by
from app.protocol.requests.bodies.batch import CHAT
from app.protocol.status import BatchStatus
from tests.faults.batch_clients import FILES
from tests.faults.batches import Batch
from tests.faults.clients import text_of
from tests.faults.evidence import Evidence
from tests.faults.questions import Question
from tests.faults.records import BatchStory, Json

ANSWERED = ("completed", "incomplete")
KEPT = ["noted", "numbered"]
"""What becomes of a line's result: nothing more, and nothing else."""
_ORDER = [each.value for each in BatchStatus if not each.final]
_CUT = (BatchStatus.CANCELLED, BatchStatus.CANCELLING)


def clients_of_batches_are_answered(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Every client had its files, and no answer that faults do not explain."""
    for story in evidence.batch_stories:
        yield from ((story.batch_id or story.key, problem) for problem in story.problems)
        if story.gave_up:
            yield story.key, f"the client of {story.batch_id} did not see its end"
        if story.batch_id is not None and story.batch_id not in evidence.batches:
            yield story.batch_id, "was created, and is gone"


def every_line_has_one_result(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Each line became one response, or none; it has one result, of its own response, which was never changed."""
    for batch_id, batch in evidence.batches.items():
        yield from ((batch_id, finding) for finding in _wrong_results(batch))


def _wrong_results(batch: Batch) -> Iterator[str]:
    is_expanded = batch.row.in_progress_at is not None
    places = list(range(1, len(batch.names) + 1)) if is_expanded else []
    if batch.row.total != len(places):
        yield f"counts {batch.row.total} lines, and its file has {len(places)}"
    lines = Counter(line for line, _ in batch.responses)
    yield from (f"line {line} has {count} responses" for line, count in lines.items() if count > 1)
    if [each.line for each in batch.results] != places:
        yield f"{len(batch.results)} results of {len(places)} lines"
    if sorted(each.number or 0 for each in batch.results) != places:
        yield "the numbers of its results have gaps"
    owners = dict(batch.responses)
    for each in batch.results:
        if each.response_id != owners.get(each.line) or each.custom_id != batch.names[each.line - 1]:
            yield f"the result of line {each.line} is another's"
        if (changes := batch.changes.get(each.line)) != KEPT:
            yield f"the result of line {each.line} was {changes}"
    if lost := owners.keys() - {each.line for each in batch.results}:
        yield f"{len(lost)} lines have a response and no result"


def batches_count_their_rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """`request_counts` and `usage` are the sums of the rows."""
    for batch_id, batch in evidence.batches.items():
        statuses = Counter(each.status for each in batch.results)
        answered = sum(statuses[name] for name in ANSWERED)
        counts = {"total": len(batch.results), "completed": answered, "failed": statuses["failed"]}
        if batch.shown["request_counts"] != counts:
            yield batch_id, f"counts {batch.shown['request_counts']}, and its rows are {counts}"
        used = [evidence.rows[name].usage for _, name in batch.responses if name in evidence.rows]
        sums = [sum(_usage(each)[place] for each in used) for place in range(4)]
        if list(_usage(batch.shown["usage"])) != sums:
            yield batch_id, f"counts the usage {_usage(batch.shown['usage'])}, and its rows {sums}"


def _usage(usage: Json | None) -> tuple[int, int, int, int]:
    if usage is None:
        return 0, 0, 0, 0
    cached, reasoning = usage["input_tokens_details"]["cached_tokens"], usage["output_tokens_details"]
    return usage["input_tokens"], cached, usage["output_tokens"], reasoning["reasoning_tokens"]


def files_are_what_the_rows_say(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The files have the bytes that the rows give, in the order of the input; so have readers, in that of the numbers.

    A file without lines is absent, and no file changes.
    """
    stories = {story.batch_id: story for story in evidence.batch_stories}
    for batch_id, batch in evidence.batches.items():
        shown = [result(each, batch.row.endpoint, ended_by(batch.row)) for each in batch.results]
        for kind in FILES:
            expected = b"".join(each.data for each in shown if each.is_answer is (kind == "output"))
            if batch.files.get(kind, b"") != expected or (kind in batch.files) is not bool(expected):
                yield batch_id, f"the {kind} file has other bytes than the rows: {_first(batch, kind, expected)}"
            story = stories.get(batch_id)
            if story is not None and not (story.gave_up or story.problems) and story.files.get(kind, b"") != expected:
                yield batch_id, f"its client read another {kind} file"
        numbered = sorted(zip(batch.results, shown, strict=True), key=lambda pair: pair[0].number or 0)
        lines = b"".join(b'{"number":%d,%b' % (each.number or 0, its.data[1:]) for each, its in numbered)
        if batch.row.status.final and batch.followed != lines + orjson.dumps({"batch": batch.shown}) + b"\n":
            yield batch_id, "a reader of its results gets other bytes than the rows"


def _first(batch: Batch, kind: str, expected: bytes) -> str:
    found, wanted = (each.splitlines() for each in (batch.files.get(kind, b""), expected))
    place = next((at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))
    return f"{len(found)} lines instead of {len(wanted)}; line {place + 1} is {found[place : place + 1]}"


def readers_see_each_result_once(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Who follows the results of a batch gets the numbers one after the other, each once, and then the batch."""
    for story, batch in _told(evidence):
        lines = [orjson.loads(line) for line in batch.followed.splitlines()]
        if story.seen != lines[: len(story.seen)]:
            place = next(at for at, (a, b) in enumerate(zip(story.seen, [*lines, None], strict=False)) if a != b)
            yield batch.row.id, f"result {place + 1} of {len(story.seen)} was not that of the rows to its reader"
        elif story.seen and not (story.gave_up or story.problems) and len(story.seen) != len(lines):
            yield batch.row.id, f"its reader ended after {len(story.seen)} of {len(lines)} lines"


def batches_only_go_on(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Its status never goes back, counts and usage only grow, and what has ended never changes."""
    for story, batch in _told(evidence):
        for earlier, later in pairwise([*story.polls, batch.shown]):
            if _rank(later) < _rank(earlier):
                yield batch.row.id, f"{later['status']} came after {earlier['status']}"
            if any(a > b for a, b in zip(_sums(earlier), _sums(later), strict=True)):
                yield batch.row.id, f"counted {_sums(earlier)} and then {_sums(later)}"
            if BatchStatus(earlier["status"]).final and earlier != later:
                yield batch.row.id, "changed after its end"


def _rank(batch: Json) -> int:
    status: str = batch["status"]
    return _ORDER.index(status) if status in _ORDER else len(_ORDER)


def _sums(batch: Json) -> tuple[int, ...]:
    return (*batch["request_counts"].values(), *_usage(batch["usage"]))


def lines_have_their_answers(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Results are those of an undisturbed run, of the lines that the client has sent; only a cancel cuts a batch."""
    questions = {name: each for story in evidence.batch_stories for name, each in story.lines.items()}
    by_key = {story.key: story for story in evidence.batch_stories}
    cancelled = {story.batch_id for story in evidence.batch_stories if story.cancel_sent}
    for batch_id, batch in evidence.batches.items():
        if (story := by_key.get((batch.row.metadata or {}).get("key", ""))) is None:
            continue
        for finding in (
            *_wrong_end(batch, is_cancelled=batch_id in cancelled),
            *_wrong_names(batch, story, evidence.batches),
            *_wrong_answers(batch, questions),
        ):
            yield batch_id, finding


def _wrong_end(batch: Batch, *, is_cancelled: bool) -> Iterator[str]:
    status = batch.row.status
    if status is not BatchStatus.COMPLETED and not (is_cancelled and status in _CUT):
        yield f"is {status.value}"
    if status is not BatchStatus.CANCELLED and any(each.status == "cancelled" for each in batch.results):
        yield "has cancelled lines"


def _wrong_names(batch: Batch, story: BatchStory, batches: Mapping[str, Batch]) -> Iterator[str]:
    if batch.row.retry_of is not None:
        retried = batches[batch.row.retry_of]
        expected = [each.custom_id for each in retried.results if each.status not in ANSWERED]
    else:
        expected = list(story.lines)
    if list(batch.names) != expected:
        yield f"its file has {len(batch.names)} other lines than the {len(expected)} that were sent"


def _wrong_answers(batch: Batch, questions: Mapping[str, Question]) -> Iterator[str]:
    output = {line["custom_id"]: line for line in map(orjson.loads, batch.files.get("output", b"").splitlines())}
    for each in batch.results:
        question = questions[each.custom_id]
        if each.status != question.status.value and each.status != "cancelled":
            yield f"'{each.custom_id}' is {each.status} instead of {question.status.value}"
        elif (line := output.get(each.custom_id)) is not None and (
            (found := _answer(line["response"]["body"], batch.row.endpoint))
            != (expected := (question.answer, question.output_tokens))
        ):
            yield f"'{each.custom_id}' has the answer {found} instead of {expected}"


def _answer(body: Json, endpoint: str) -> tuple[str, int]:
    """The text of an answer, and its tokens."""
    if endpoint != CHAT:
        return text_of(body), body["usage"]["output_tokens"]
    message: dict[str, Any] = body["choices"][0]["message"]
    calls = "".join(each["function"]["arguments"] for each in message.get("tool_calls") or ())
    text = (message.get("reasoning_content") or "") + (message.get("content") or "") + calls
    return text, body["usage"]["completion_tokens"]


def _told(evidence: Evidence) -> Iterator[tuple[BatchStory, Batch]]:
    for story in evidence.batch_stories:
        if (batch := evidence.batches.get(story.batch_id or "")) is not None:
            yield story, batch


RULES: tuple[Callable[[Evidence], Iterator[tuple[str, str]]], ...] = (
    clients_of_batches_are_answered,
    every_line_has_one_result,
    batches_count_their_rows,
    files_are_what_the_rows_say,
    readers_see_each_result_once,
    batches_only_go_on,
    lines_have_their_answers,
)
