"""What became of one response, told from its row and its log: no prompt and no output is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from app.heavy import off_loop
from app.ids import may_exist
from app.operations.history import History, history_of
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.types import Json
from app.responses.read.reader import no_such_response
from app.store.database import Database
from app.store.operations import history, listing, stories
from app.store.operations.listing import ListedResponse
from app.store.operations.stories import LoggedAttempt
from app.store.queue import backlog
from app.store.responses import logs


@dataclass(frozen=True, slots=True)
class Story:
    """A response, and how it came to where it is."""

    response: ListedResponse
    project_name: str | None
    history: History
    attempts: Sequence[LoggedAttempt]
    """What each attempt has written, as long as the log is kept."""
    retried_by: str | None
    """The response that repeats its request."""


async def find_story(db: Database, response_id: str) -> Story:
    """Raises NotFound and StoreUnavailable."""
    row = await listing.find_one(db, response_id) if may_exist(response_id) else None
    if row is None:
        raise no_such_response(response_id)
    if (facts := await history.read(db, response_id)) is None:  # deleted since
        raise no_such_response(response_id)
    attempts, retry = await stories.read_attempts(db, response_id), await stories.find_retry(db, response_id)
    names = await backlog.project_names(db, [row.project])
    return Story(row, names.get(row.project), history_of(facts, attempts), attempts, retry)


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
