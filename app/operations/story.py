"""What became of one response, told from its row and its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from app.heavy import off_loop
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.item_types import HOSTED_CALLS
from app.protocol.types import Json
from app.responses.ids import may_exist
from app.responses.read.reader import no_such_response
from app.store.database import Database
from app.store.operations import listing, stories
from app.store.operations.listing import ListedResponse
from app.store.operations.stories import LoggedAttempt
from app.store.responses import logs, lookup


@dataclass(frozen=True, slots=True)
class Moment:
    """When the response got into a state."""

    state: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a hosted tool, without what it was asked and what it answered."""

    type: str
    id: str
    status: str | None
    server_label: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class Story:
    """A response, and how it came to where it is."""

    response: ListedResponse
    moments: Sequence[Moment]
    attempts: Sequence[LoggedAttempt]
    """What each attempt has written, as long as the log is kept."""
    tool_calls: Sequence[ToolCall]
    retried_by: str | None
    """The response that repeats its request."""


def told(
    row: ListedResponse, attempts: Sequence[LoggedAttempt], output: Sequence[Json], retried_by: str | None
) -> Story:
    return Story(
        row, _moments(row), attempts, [_call(item) for item in output if item["type"] in HOSTED_CALLS], retried_by
    )


async def find_story(db: Database, response_id: str) -> Story:
    """Raises NotFound and StoreUnavailable."""
    row = await listing.find_one(db, response_id) if may_exist(response_id) else None
    if row is None:
        raise no_such_response(response_id)
    full = await lookup.find(db, response_id)
    output = [] if full is None or full.output is None else full.output
    return told(row, await stories.read_attempts(db, response_id), output, await stories.find_retry(db, response_id))


async def read_events(db: Database, response_id: str, after: int) -> tuple[str, list[Json], bool]:
    """The response's status, numbers and types of its events after a number, and whether there are more by now.

    Raises NotFound and StoreUnavailable.
    """
    log = await logs.read_page(db, response_id, after) if may_exist(response_id) else None
    if log is None or log.status is None:
        raise no_such_response(response_id)
    size = sum(len(chunk.frames) for chunk in log.chunks)
    return log.status.value, await off_loop(partial(_names, log.chunks), size), log.has_more


def _names(chunks: Sequence[Chunk]) -> list[Json]:
    events = (event for chunk in chunks for event in frames.decode(chunk.frames))
    return [{"sequence_number": event["sequence_number"], "type": event["type"]} for event in events]


def _moments(row: ListedResponse) -> list[Moment]:
    known = (("queued", row.inserted_at), ("sent", row.sent_at), ("in_progress", row.started_at))
    moments = [Moment(state, at) for state, at in known if at is not None]
    if row.finished_at is not None:
        moments.append(Moment(row.status, row.finished_at))
    return moments


def _call(item: Json) -> ToolCall:
    return ToolCall(item["type"], item["id"], item.get("status"), item.get("server_label"), item.get("name"))
