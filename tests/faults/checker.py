"""The checker compares what Longhaul promises with what clients were sent and what Postgres recorded.

Each rule is a function from the evidence to (where, finding) pairs. No rule relies on the product alone: `questions`
computes texts and token counts, Postgres records transitions (`audit`), tests/support/grammar checks the order of
events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.status import Status
from app.store.rows import ResponseRow
from tests.faults import audit, batch_rules, project_rules
from tests.faults.audit import Write
from tests.faults.clients import text_of
from tests.faults.evidence import Evidence
from tests.faults.records import Form, Poll, ReaderRecord, Story
from tests.support import grammar

STOP_SECONDS = 3.0
"""How long after its SIGTERM an API process may cancel the responses that its clients wait for."""
CRASH_SECONDS = 1.0
"""How long before a crash of Postgres a claim may have been made that the crash undid."""
CRASH_WORDS = (
    " crashed: ",
    "went wrong",
    "cancelled by nobody",
    "goes wrong",
    "cannot be corrected",
    "did not stop",
    "could not note the end of",
    "the task failed: ",
    "cannot be failed",
    "cannot be read",
    "ends without its output",
    "a task of the lease ended",
    "hangs; the process ends",
    "did not end cleanly",
    "; the worker stops",
    "cannot be checked",
    "the engine gave up its request",
    "is given up: ",
    "are not those of this version",
)
"""Words of the log lines by which the product reports an unforeseen error: no fault excuses one."""
LIBRARY_CRASH_WORDS = {"Traceback": "traceback", "Unrecoverable error": "celery.worker.worker"}
"""The same for lines that libraries print: the word, and the module whose source has it."""
ENDED_BY_SIGNAL = ("KeyboardInterrupt", "KeyboardInterrupt: ", "SystemExit: 0")
"""The last lines of tracebacks that say only that a signal came while a program started, or while Flower stopped."""
FORESEEN_ERRORS = (
    "no metrics are served",  # another program has taken the port since the start
    "is gone; its responses go to other workers",
    "ran out; its %d responses go to other",
    "abandoned, but not cancelled",
    "did not end in time",
    "the worker cannot start",
    "exiting all the same",
    "the engine died",
    "belongs to this worker and does not run here",
    "failed: %s",
    "%s fails: %s (%s)",
    "Flower shows events alone",
    "MCP server %r",
    "the MCP servers stay as they were",
    "an error in Celery's main thread",
    "Postgres ended its statements",
)
"""Words of the product's other lines at ERROR or above: faults cause these."""
_RANK = {Status.QUEUED: 0, Status.IN_PROGRESS: 1}
_FINAL_RANK = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    rule: str
    where: str
    """A response's id, a request's key, or a part of the system."""
    finding: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.finding}"


Rule = Callable[[Evidence], Iterator[tuple[str, str]]]


def check(evidence: Evidence) -> list[Violation]:
    """Every violation of every rule."""
    return [Violation(rule.__name__, where, finding) for rule in RULES for where, finding in rule(evidence)]


# -- the system ----------------------------------------------------------------------------------------------


def everything_ends(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Every accepted response became final, and every client had its answer."""
    for finding in evidence.unsettled:
        yield finding.split()[0], finding
    for story in evidence.stories:
        if story.gave_up:
            yield story.key, f"{story.form.value}: its client had no answer for {story.response_id}"


def transitions_are_legal(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A response is queued once, claimed only when no worker owns it, and final for ever."""
    for response_id, steps in evidence.transitions.items():
        for finding in audit.violations(steps):
            yield response_id, finding


def only_owners_write_chunks(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Only the owner of a response writes its chunks, and no chunk changes."""
    for response_id, writes in evidence.writes.items():
        for write in writes:
            if write.violation is not None:
                yield response_id, f"events {write.first}-{write.last} of attempt {write.attempt}: {write.violation}"


def logs_are_complete(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Chunks follow one another, events keep the grammar, and the terminal event has the response of the row. That of
    a cancelled one has an error besides."""
    for response_id, row in evidence.rows.items():
        chunks = evidence.logs[response_id]
        for earlier, later in pairwise(chunks):
            if later.first != earlier.last + 1:
                yield response_id, f"events {later.first}-{later.last} follow event {earlier.last}"
        events = [event for chunk in chunks for event in frames.decode(chunk.frames)]
        try:
            grammar.check(events)
        except grammar.Violation as error:
            yield response_id, str(error)[:300]
        last = events[-1].get("response") if events else None
        if row.status is Status.CANCELLED and last is not None:  # it has an error, which tells clients not to try again
            last = {**last, "error": None}
        if row.status.final and last != row.as_object():
            yield response_id, f"the row is {row.status.value}, and its last event differs"


def replays_equal_the_log(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A stream read from the start equals the log, byte for byte, and ends with [DONE]."""
    for response_id, replay in evidence.replays.items():
        if replay != raw(evidence.logs[response_id]) + frames.DONE:
            yield response_id, f"status {replay}" if isinstance(replay, int) else "other bytes than the log"


def nothing_is_left(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No message, channel, job or process is left, and no row of a worker that is gone."""
    yield from (("redis", finding) for finding in evidence.left_in_redis)
    yield from (("workers", finding) for finding in evidence.unknown_workers)
    yield from (("pools", finding) for finding in evidence.busy)
    yield from (("processes", finding) for finding in evidence.left_behind)


def nothing_crashes(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No fault causes an unforeseen error in any process."""
    for line in evidence.error_lines:
        is_crash = any(word in line for word in (*CRASH_WORDS, *LIBRARY_CRASH_WORDS))
        if is_crash and not line.endswith(ENDED_BY_SIGNAL):
            yield "log", line[:1500]


# -- clients ------------------------------------------------------------------------------------------------


def accepted_responses_exist(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A response whose id a client has exists until it is deleted."""
    for story in evidence.stories:
        if story.response_id is None:
            continue
        exists = story.response_id in evidence.rows
        if not exists and not story.delete_sent:
            yield story.response_id, "was accepted, and is gone"
        if exists and story.deleted:
            yield story.response_id, "was deleted, and exists"


def readers_see_the_log(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Readers get the bytes of the log without gap or repeat, and those that can resume get all of it."""
    for story in evidence.stories:
        for number, seen in enumerate(story.readers):
            where = f"{story.response_id or story.key} reader {number} ({story.form.value})"
            yield from ((where, problem) for problem in seen.problems)
            chunks = evidence.logs.get(_read_id(story, seen) or "")
            if chunks is None:
                continue
            whole = b"".join(frames.split(raw(chunks))[seen.after + 1 :])
            if not whole.startswith(seen.raw):
                yield where, f"its {len(seen.frames)} events are not those of the log: {_difference(seen, whole)}"
            elif story.form.background and not story.gave_up and seen.raw != whole:
                yield where, f"ended after event {seen.next - 1}, and the log goes on"


def durable_before_visible(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No reader gets an event before its commit."""
    for story in evidence.stories:
        for number, seen in enumerate(story.readers):
            response_id = _read_id(story, seen) or ""
            committed = _committed(evidence.writes.get(response_id, ()))
            for event, arrival in enumerate(seen.arrivals, seen.after + 1):
                if (at := committed.get(event)) is not None and arrival < at:
                    yield response_id, f"reader {number} had event {event} {at - arrival:.6f} s before its commit"
                    break


def statuses_never_go_back(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Polls see queued, in_progress, one final status; text only grows; all final answers are equal.

    A crash of Postgres may undo a claim, and nothing else (docs/reliability.md).
    """
    for story in evidence.stories:
        for earlier, later in pairwise(story.polls):
            if rank(later.status) < rank(earlier.status) and not _claim_was_undone(evidence, earlier, later):
                yield story.response_id or "", f"{later.status.value} came after {earlier.status.value}"
            if not later.text.startswith(earlier.text):
                yield story.response_id or "", "its text was taken back"
        if len({str(final) for final in story.finals}) > 1:
            yield story.response_id or story.key, f"{len(story.finals)} final answers differ"
        row = evidence.rows.get(story.response_id or "")
        for final in story.finals[-1:]:
            if row is not None and final != row.as_object():
                yield row.id, f"a client got another response than the row ({final['status']}, {row.status.value})"


def _claim_was_undone(evidence: Evidence, earlier: Poll, later: Poll) -> bool:
    crashed = any(earlier.began < at + CRASH_SECONDS and at < later.ended for at in evidence.crashes)
    return crashed and (earlier.status, later.status) == (Status.IN_PROGRESS, Status.QUEUED)


def clients_got_expected_answers(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Clients got no status code that faults do not explain."""
    for story in evidence.stories:
        yield from ((story.response_id or story.key, problem) for problem in story.problems)


# -- responses -----------------------------------------------------------------------------------------------


def answers_equal_those_of_an_undisturbed_run(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Text, status and usage are those of an undisturbed run; a cancelled response has a prefix of the text."""
    for story, rows in _rows_of(evidence):
        for row in rows:
            if (finding := _difference_from_answer(story, row)) is not None:
                yield row.id, f"{story.form.value} {story.question.command[:40]!r}: {finding}"


def _difference_from_answer(story: Story, row: ResponseRow) -> str | None:
    question, text = story.question, text_of({"output": row.output or []})
    if row.status is Status.CANCELLED:
        return None if question.answer.startswith(text) else f"cancelled with another text: {text[-60:]!r}"
    if row.status is not question.status:
        return f"is {row.status.value} instead of {question.status.value}: {row.error}"
    if text != question.answer:
        return f"another text: {_first_difference(text, question.answer)}"
    if question.output_tokens is None:
        return None
    usage = row.usage or {}
    counted = (usage.get("input_tokens"), usage.get("output_tokens"), usage.get("total_tokens"))
    input_tokens = usage.get("input_tokens", 0) if question.input_tokens is None else question.input_tokens
    expected = (input_tokens, question.output_tokens, input_tokens + question.output_tokens)
    return None if counted == expected else f"usage {counted} instead of {expected}"


def only_requested_cancellations(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A response is cancelled only if a client cancelled or left it, and then it stays cancelled."""
    for story, rows in _rows_of(evidence):
        for row in rows:
            cancelled = row.status is Status.CANCELLED
            same = story.keyed or row.id == story.response_id
            if cancelled and same and not _may_be_cancelled(evidence, story):
                yield row.id, f"{story.form.value}: cancelled without a request"
            if same and Status.CANCELLED in story.cancel_answers and not cancelled:
                yield row.id, f"its cancel was confirmed, and it is {row.status.value}"


def _may_be_cancelled(evidence: Evidence, story: Story) -> bool:
    if story.form.background:
        return story.cancel_sent or story.delete_sent
    if story.keyed:
        return False
    stopped = any(story.began - STOP_SECONDS < at < story.ended for at in evidence.api_stops)
    return story.left or stopped


def one_key_makes_one_response(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A repeated POST with the same Idempotency-Key makes no second response."""
    for story, rows in _rows_of(evidence):
        if story.keyed and len(rows) > 1:
            yield story.key, f"{len(rows)} responses: {', '.join(row.id for row in rows)}"


# -- all rules ---------------------------------------------------------------------------------------------------

RULES: tuple[Rule, ...] = (
    everything_ends,
    transitions_are_legal,
    only_owners_write_chunks,
    logs_are_complete,
    replays_equal_the_log,
    nothing_is_left,
    nothing_crashes,
    accepted_responses_exist,
    readers_see_the_log,
    durable_before_visible,
    statuses_never_go_back,
    clients_got_expected_answers,
    answers_equal_those_of_an_undisturbed_run,
    only_requested_cancellations,
    one_key_makes_one_response,
    project_rules.the_ledger_is_the_sum_of_all_usage,
    project_rules.ended_responses_reserve_nothing,
    project_rules.limits_are_never_exceeded,
    project_rules.stored_bytes_are_those_of_the_rows,
    *batch_rules.RULES,
)


# -- helpers -------------------------------------------------------------------------------------------------


def raw(chunks: tuple[Chunk, ...]) -> bytes:
    return b"".join(chunk.frames for chunk in chunks)


def rank(status: Status) -> int:
    return _RANK.get(status, _FINAL_RANK)


def _rows_of(evidence: Evidence) -> Iterator[tuple[Story, list[ResponseRow]]]:
    """Each story with all rows that its POSTs made, including those whose answer was lost."""
    by_key: dict[str, list[ResponseRow]] = defaultdict(list)
    for row in evidence.rows.values():
        by_key[row.request["metadata"].get("key", "")].append(row)
    for story in evidence.stories:
        yield story, by_key[story.key]


def _committed(writes: Sequence[Write]) -> dict[int, float]:
    """Event -> the earliest time of its commit: a chunk may be written twice."""
    found: dict[int, float] = {}
    for write in writes:
        for event in range(write.first, write.last + 1):
            found.setdefault(event, write.at)
    return found


def _read_id(story: Story, seen: ReaderRecord) -> str | None:
    """The response of these events. A repeated foreground stream has its id in its first event."""
    if story.form is not Form.STREAM or not seen.frames:
        return story.response_id
    first: str = frames.decode(seen.frames[0])[0]["response"]["id"]
    return first


def _difference(seen: ReaderRecord, whole: bytes) -> str:
    log = frames.split(whole)
    for number, frame in enumerate(seen.frames):
        if number >= len(log) or log[number] != frame:
            logged = log[number][:160] if number < len(log) else None
            return f"event {seen.after + 1 + number} is {frame[:160]!r}, but in the log {logged!r}"
    return "no difference"


def _first_difference(text: str, answer: str) -> str:
    pairs = enumerate(zip(text, answer, strict=False))
    index = next((index for index, (a, b) in pairs if a != b), min(len(text), len(answer)))
    here = f"at {index}: {text[index:][:40]!r} instead of {answer[index:][:40]!r}"
    return f"{len(text)} characters instead of {len(answer)}; {here}"
