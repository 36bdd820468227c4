"""The history of one response, from its rows: what happened when, on which worker, and how it ended. Pure.

A row keeps the time of each attempt that handed the response over, and of the last one: an ordinary response has one
attempt, and costs nothing more. Times are Postgres'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.store.guards import HandOver
from app.store.operations.history import ResponseFacts, ToolCall
from app.store.operations.stories import LoggedAttempt

RUNS = "runs"
"""How the last attempt stands, while a worker has the response."""
UNKNOWN = "unknown"
"""How the last attempt ended, if it left no trace: a crash of Postgres took it back."""

SAID: dict[str, str] = {
    HandOver.YIELDED: "gave its slot to a foreground response",
    HandOver.DRAINED: "its worker was told to stop, and handed it over",
    HandOver.CRASHED: "its worker died",
    HandOver.STOPPED: "its worker went, and left it behind",
    HandOver.ENGINE_DIED: "the engine died",
    HandOver.ENGINE_GAVE_UP: "the engine gave the request up",
    HandOver.STORE_TROUBLE: "Postgres ended its statements",
    HandOver.CUT_OFF: "its attempt was cancelled, and nobody had asked for that",
    HandOver.ORPHANED: "its worker owned it and did not run it",
}
"""What a hand-over is called in a moment."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: `how` it ended, a HandOver, the response's status, or RUNS."""

    number: int
    worker: str | None
    began_at: datetime | None
    ended_at: datetime | None
    how: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, in words."""

    at: datetime
    what: str
    attempt: int | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What became of a response."""

    request_id: str | None
    traceparent: str | None
    attempts: Sequence[Attempt]
    """In order; the oldest are missing if there were too many."""
    calls: Sequence[ToolCall]
    """Of hosted tools."""
    moments: Sequence[Moment]
    """In the order of time."""


def history_of(facts: ResponseFacts, logged: Sequence[LoggedAttempt] = ()) -> History:
    """What the rows tell of a response. `logged` is what its attempts have written."""
    attempts = tuple(_attempts(facts))
    moments = sorted(_moments(facts, attempts, logged), key=lambda moment: moment.at)
    return History(facts.request_id, facts.traceparent, attempts, facts.calls, moments)


def _said(how: str) -> str:
    return SAID.get(how, f"handed over: {how.replace('_', ' ')}")  # by a newer version


def _error(facts: ResponseFacts) -> str | None:
    if facts.error_code is not None:
        return f"{facts.error_code}: {facts.error_message}"
    return facts.incomplete_reason


def _attempts(facts: ResponseFacts) -> Iterator[Attempt]:
    for each in facts.history:
        yield Attempt(each.attempt, each.worker, each.began_at, each.ended_at, each.how)
    if facts.attempt and not (facts.history and facts.history[-1].attempt == facts.attempt):
        yield _last_attempt(facts)


def _last_attempt(facts: ResponseFacts) -> Attempt:
    if facts.status.final:
        how, ended = facts.status.value, facts.finished_at
    else:
        how, ended = (RUNS if facts.is_owned else UNKNOWN), None
    return Attempt(facts.attempt, facts.sent_to, facts.claimed_at, ended, how)


def _whether_crash(attempt: int, facts: ResponseFacts, logged: Sequence[LoggedAttempt]) -> str:
    """Whether a worker's death counts as a crash of the response; a log that was merged does not tell."""
    if any(each.attempt == attempt and each.has_progressed for each in logged):
        return "; counted as a crash: no, it had made progress"
    return "" if facts.status.final else "; counted as a crash: yes, it had made no progress"


def _moments(facts: ResponseFacts, attempts: Sequence[Attempt], logged: Sequence[LoggedAttempt]) -> Iterator[Moment]:
    yield Moment(facts.inserted_at, "accepted")
    for attempt in attempts:
        where = (attempt.number, attempt.worker)
        if attempt.began_at is not None:
            yield Moment(attempt.began_at, "claimed", *where)
    for each in facts.history:
        counted = _whether_crash(each.attempt, facts, logged) if each.how == HandOver.CRASHED else ""
        yield Moment(each.ended_at, _said(each.how) + counted, each.attempt, each.worker)
    waits = not facts.is_owned and not facts.status.final
    if waits and facts.sent_at is not None:
        sent = "sent to a worker" if facts.sends <= 1 else f"sent to a worker, for the {facts.sends}. time"
        yield Moment(facts.sent_at, sent, None, facts.sent_to)
    if facts.finished_at is not None:
        error = _error(facts)
        yield Moment(facts.finished_at, facts.status.value if error is None else f"{facts.status.value} ({error})")
