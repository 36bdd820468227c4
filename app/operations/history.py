"""The history of one response, from its row and its log: no prompt and no output is read.

A row keeps the time of each attempt that handed the response over, and of the last one: an ordinary response has one
attempt, and costs nothing more. Times are Postgres'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from app.heavy import off_loop
from app.operations.words import ordinal
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.types import Json
from app.responses.read.reader import no_such_response
from app.store.database import Database
from app.store.guards import HandOver
from app.store.operations import known
from app.store.operations.known import KnownResponse, LoggedAttempt, ToolCall
from app.store.responses import logs

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
"""A hand-over in words."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, in words."""

    at: datetime
    what: str
    attempt: int | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """A response, and how it came to where it is."""

    response: KnownResponse
    moments: Sequence[Moment]
    """The moments in the order of time; the oldest hand-overs are missing if there were too many."""
    attempts: Sequence[LoggedAttempt]
    """The figures of each attempt's part of the log, as long as the log is kept."""
    calls: Sequence[ToolCall]
    """Calls of hosted tools."""


async def find_history(db: Database, response_id: str) -> History:
    """Raises NotFound and StoreUnavailable."""
    response = await known.find(db, response_id)
    if response is None:
        raise no_such_response(response_id)
    logged, calls = await known.read_attempts(db, response_id), await known.read_calls(db, response)
    return history_of(response, logged, calls)


def history_of(
    response: KnownResponse, logged: Sequence[LoggedAttempt] = (), calls: Sequence[ToolCall] = ()
) -> History:
    """`logged` is what its attempts have written."""
    return History(response, sorted(_moments(response, logged), key=lambda moment: moment.at), logged, calls)


def _said(how: str) -> str:
    return SAID.get(how, f"handed over: {how.replace('_', ' ')}")  # by a newer version


def _whether_crash(attempt: int, response: KnownResponse, logged: Sequence[LoggedAttempt]) -> str:
    """Whether a worker's death counts as a crash of the response; a log that was merged does not tell."""
    if any(each.attempt == attempt and each.has_progressed for each in logged):
        return "; counted as a crash: no, it had made progress"
    return "" if response.finished_at is not None else "; counted as a crash: yes, it had made no progress"


def _moments(response: KnownResponse, logged: Sequence[LoggedAttempt]) -> Iterator[Moment]:
    yield Moment(response.inserted_at, "accepted")
    handed_over = response.history[-1].attempt if response.history else 0
    if response.claimed_at is not None and response.attempt > handed_over:
        yield Moment(response.claimed_at, "claimed", response.attempt, response.sent_to)
    for each in response.history:
        if each.began_at is not None:
            yield Moment(each.began_at, "claimed", each.attempt, each.worker)
        counted = _whether_crash(each.attempt, response, logged) if each.how == HandOver.CRASHED else ""
        yield Moment(each.ended_at, _said(each.how) + counted, each.attempt, each.worker)
    if response.sent_at is not None and response.worker is None and response.finished_at is None:
        again = "" if response.sends <= 1 else f", for the {ordinal(response.sends)} time"
        yield Moment(response.sent_at, f"sent to a worker{again}", None, response.sent_to)
    if response.finished_at is not None:
        error = (response.incomplete_details or {}).get("reason")
        if response.error is not None:
            error = f"{response.error.get('code')}: {response.error.get('message')}"
        yield Moment(response.finished_at, response.status if error is None else f"{response.status} ({error})")


async def read_events(db: Database, response_id: str, after: int) -> tuple[str, list[Json], bool]:
    """The response's status, numbers and types of its events after a number, and whether there are more by now.

    Raises NotFound and StoreUnavailable.
    """
    log = await logs.read_page(db, response_id, after)
    if log.status is None:
        raise no_such_response(response_id)
    size = sum(len(chunk.frames) for chunk in log.chunks)
    return log.status.value, await off_loop(partial(_names, log.chunks), size), log.has_more


def _names(chunks: Sequence[Chunk]) -> list[Json]:
    events = (event for chunk in chunks for event in frames.decode(chunk.frames))
    return [{"sequence_number": event["sequence_number"], "type": event["type"]} for event in events]
