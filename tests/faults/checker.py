"""The checker: what was promised, against what clients saw and what Postgres says.

Each rule is a function from the evidence to violations. None trusts the product's own word alone: texts and token
counts were worked out by `questions`, transitions were written down by Postgres (`audit`), the order of events is
checked by tests/support/grammar.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.status import Status
from app.store.rows import ResponseRow
from tests.faults import audit
from tests.faults.audit import Write
from tests.faults.clients import text_of
from tests.faults.evidence import Evidence
from tests.faults.records import Form, Seen, Story
from tests.support import grammar

STOP_SECONDS = 3.0
"""How long after its SIGTERM an API may still cancel what its clients wait for."""
CRASH_WORDS = (
    " crashed: ",
    "went wrong",
    "cannot commit",
    "did not stop",
    "could not note the end of",
    "the task of ",
)
"""Words of the log lines by which the product reports an unforeseen error: no fault excuses one."""
LIBRARY_CRASH_WORDS = {"Traceback": "traceback", "Unrecoverable error": "celery.worker.worker"}
"""The same for lines that libraries print: the word, and the module whose source has it."""
FORESEEN_ERRORS = (
    "abandoned, but not cancelled",
    "did not end in time",
    "the worker cannot start",
    "exiting all the same",
    "the engine died",
    "belongs to this worker and does not run here",
    "%s failed: %s",
    "MCP server %r",
)
"""Words of the product's other lines at ERROR or above: faults cause these."""
_VLLM = re.compile(r" ERROR \d\d-\d\d [\d:]{8} \[\w+\.py:\d+\]")
"""Its own logger's form: it prints a traceback when its EngineCore is gone, which we then act on."""
_RANK = {Status.QUEUED: 0, Status.IN_PROGRESS: 1}
_FINAL_RANK = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    rule: str
    where: str
    """A response's id, or its request's key."""
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.what}"


Rule = Callable[[Evidence], Iterator[tuple[str, str]]]


def check(evidence: Evidence) -> list[Violation]:
    """Every violation of every rule."""
    return [Violation(rule.__name__, *found) for rule in RULES for found in rule(evidence)]


# -- the system ----------------------------------------------------------------------------------------------


def everything_ends(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Every accepted response is final, and every client had an end."""
    for what in evidence.unsettled:
        yield what.split()[0], what
    for story in evidence.stories:
        if story.gave_up:
            yield story.key, f"{story.form.value}: its client waited in vain for {story.response_id}"


def a_life_keeps_the_law(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """queued once, claimed only when nobody owns it, terminal once and for ever."""
    for response_id, steps in evidence.lives.items():
        for what in audit.wrong(steps):
            yield response_id, what


def every_chunk_is_its_owners(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Nobody writes who does not own the response at that moment, and what is written stays."""
    for response_id, writes in evidence.writes.items():
        for write in writes:
            if write.wrong is not None:
                yield response_id, f"events {write.first}-{write.last} of attempt {write.attempt}: {write.wrong}"


def the_log_is_whole(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Chunks follow each other, events keep the grammar, and the terminal one says what the row says."""
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
        if row.status.final and (not events or events[-1].get("response") != row.as_object()):
            yield response_id, f"the row is {row.status.value}, and its last event says something else"


def a_replay_is_the_log(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Reading again from 0 gives the log, byte for byte, and [DONE]."""
    for response_id, replay in evidence.replays.items():
        if replay != raw(evidence.logs[response_id]) + frames.DONE:
            yield response_id, f"status {replay}" if isinstance(replay, int) else "other bytes than the log"


def nothing_is_left(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No message, no channel, no worker's row, no job, no process."""
    yield from (("redis", what) for what in evidence.waiting)
    yield from (("workers", what) for what in evidence.owners)
    yield from (("pools", what) for what in evidence.busy)
    yield from (("processes", what) for what in evidence.left_behind)


def doorbells_ring(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """After all of that every worker still publishes what it commits, and every API still listens."""
    yield from (("redis", what) for what in evidence.silent)


def nothing_crashes(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Faults are normal: no process meets one with an error that it did not foresee."""
    for line in evidence.complaints:
        if any(word in line for word in (*CRASH_WORDS, *LIBRARY_CRASH_WORDS)) and not _VLLM.search(line):
            yield "log", line[:1500]


# -- what clients saw ----------------------------------------------------------------------------------------


def accepted_is_kept(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """An id that was given exists until it is deleted, and then no more."""
    for story in evidence.stories:
        if story.response_id is None:
            continue
        there = story.response_id in evidence.rows
        if not there and not story.delete_sent:
            yield story.response_id, "accepted, and gone"
        if there and story.deleted:
            yield story.response_id, "deleted, and there"


def readers_see_the_log(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No gap, no repeat, byte-equal to the log; and readers that may resume come to the end of it."""
    for story in evidence.stories:
        for number, seen in enumerate(story.readers):
            where = f"{story.response_id or story.key} reader {number} ({story.form.value})"
            yield from ((where, what) for what in seen.wrong)
            chunks = evidence.logs.get(_read_id(story, seen) or "")
            if chunks is None:
                continue
            whole = b"".join(frames.split(raw(chunks))[seen.after + 1 :])
            if not whole.startswith(seen.raw):
                yield where, f"its {len(seen.frames)} events are not those of the log: {_difference(seen, whole)}"
            elif story.form.background and not story.gave_up and seen.raw != whole:
                yield where, f"ended after event {seen.next - 1}, before the log does"


def durable_before_visible(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No reader has an event before its commit."""
    for story in evidence.stories:
        for number, seen in enumerate(story.readers):
            response_id = _read_id(story, seen) or ""
            committed = _committed(evidence.writes.get(response_id, ()))
            for event, arrival in enumerate(seen.arrivals, seen.after + 1):
                if (at := committed.get(event)) is not None and arrival < at:
                    yield response_id, f"reader {number} had event {event} {at - arrival:.6f} s before its commit"
                    break


def statuses_never_go_back(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """queued, in progress, one final status; and text only grows."""
    for story in evidence.stories:
        for earlier, later in pairwise(story.polls):
            if rank(later.status) < rank(earlier.status):
                yield story.response_id or "", f"{later.status.value} was seen after {earlier.status.value}"
            if not later.text.startswith(earlier.text):
                yield story.response_id or "", "its text was taken back"
        if len({str(final) for final in story.finals}) > 1:
            yield story.response_id or story.key, f"{len(story.finals)} final answers differ"
        row = evidence.rows.get(story.response_id or "")
        for final in story.finals[-1:]:
            if row is not None and final != row.as_object():
                yield row.id, f"a client saw {final['status']}, the row is {row.status.value}, or differs otherwise"


def clients_found_nothing_strange(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No unexpected status code."""
    for story in evidence.stories:
        yield from ((story.response_id or story.key, what) for what in story.wrong)


# -- what came out -------------------------------------------------------------------------------------------


def answers_are_those_of_an_undisturbed_run(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Text, status and usage; a cancelled one has the beginning of the text."""
    for story, rows in _rows_of(evidence):
        for row in rows:
            if (what := _judge(story, row)) is not None:
                yield row.id, f"{story.form.value} {story.question.command[:40]!r}: {what}"


def _judge(story: Story, row: ResponseRow) -> str | None:
    question, said = story.question, text_of({"output": row.output or []})
    if row.status is Status.CANCELLED:
        return None if question.answer.startswith(said) else f"cancelled with another text: {said[-60:]!r}"
    if row.status is not question.status:
        return f"is {row.status.value} in place of {question.status.value}: {row.error}"
    if said != question.answer:
        return f"another text: {_first_difference(said, question.answer)}"
    if question.output_tokens is None:
        return None
    usage = row.usage or {}
    counted = (usage.get("input_tokens"), usage.get("output_tokens"), usage.get("total_tokens"))
    read = usage.get("input_tokens", 0) if question.input_tokens is None else question.input_tokens
    right = (read, question.output_tokens, read + question.output_tokens)
    return None if counted == right else f"usage {counted} in place of {right}"


def cancelled_is_who_asked_for_it(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Nothing is cancelled that nobody cancelled or abandoned; and what was cancelled stays so."""
    for story, rows in _rows_of(evidence):
        for row in rows:
            cancelled = row.status is Status.CANCELLED
            mine = story.keyed or row.id == story.response_id
            if cancelled and mine and not _may_be_cancelled(evidence, story):
                yield row.id, f"{story.form.value}: cancelled, and nobody asked for it"
            if mine and Status.CANCELLED in story.cancel_answers and not cancelled:
                yield row.id, f"its cancel was confirmed, and it is {row.status.value}"


def _may_be_cancelled(evidence: Evidence, story: Story) -> bool:
    if story.form.background:
        return story.cancel_sent or story.delete_sent
    if story.keyed:
        return False
    stopped = any(story.began - STOP_SECONDS < at < story.ended for at in evidence.api_stops)
    return story.left or stopped


def one_key_is_one_response(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A repeated Idempotency-Key made no second response."""
    for story, rows in _rows_of(evidence):
        if story.keyed and len(rows) > 1:
            yield story.key, f"{len(rows)} responses: {', '.join(row.id for row in rows)}"


RULES: tuple[Rule, ...] = (
    everything_ends,
    a_life_keeps_the_law,
    every_chunk_is_its_owners,
    the_log_is_whole,
    a_replay_is_the_log,
    nothing_is_left,
    doorbells_ring,
    nothing_crashes,
    accepted_is_kept,
    readers_see_the_log,
    durable_before_visible,
    statuses_never_go_back,
    clients_found_nothing_strange,
    answers_are_those_of_an_undisturbed_run,
    cancelled_is_who_asked_for_it,
    one_key_is_one_response,
)


# -- helpers -------------------------------------------------------------------------------------------------


def raw(chunks: tuple[Chunk, ...]) -> bytes:
    return b"".join(chunk.frames for chunk in chunks)


def rank(status: Status) -> int:
    return _RANK.get(status, _FINAL_RANK)


def _rows_of(evidence: Evidence) -> Iterator[tuple[Story, list[ResponseRow]]]:
    """Each request with every row that it made, those of lost answers too."""
    by_key: dict[str, list[ResponseRow]] = defaultdict(list)
    for row in evidence.rows.values():
        by_key[row.request["metadata"].get("key", "")].append(row)
    for story in evidence.stories:
        yield story, by_key[story.key]


def _committed(writes: Sequence[Write]) -> dict[int, float]:
    """Event -> the earliest moment at which it can have been committed. The same chunk may be written twice."""
    found: dict[int, float] = {}
    for write in writes:
        for event in range(write.first, write.last + 1):
            found.setdefault(event, write.at)
    return found


def _read_id(story: Story, seen: Seen) -> str | None:
    """Whose events these are; the stream of a foreground request says so itself."""
    if story.form is not Form.STREAM or not seen.frames:
        return story.response_id
    first: str = frames.decode(seen.frames[0])[0]["response"]["id"]
    return first


def _difference(seen: Seen, whole: bytes) -> str:
    log = frames.split(whole)
    for number, frame in enumerate(seen.frames):
        if number >= len(log) or log[number] != frame:
            logged = log[number][:160] if number < len(log) else None
            return f"event {seen.after + 1 + number} is {frame[:160]!r}, and in the log {logged!r}"
    return "no difference"


def _first_difference(said: str, answer: str) -> str:
    place = next((n for n, (a, b) in enumerate(zip(said, answer, strict=False)) if a != b), min(len(said), len(answer)))
    return (
        f"{len(said)} characters in place of {len(answer)}; at {place}: {said[place:][:40]!r}, {answer[place:][:40]!r}"
    )
