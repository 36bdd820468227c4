"""How large the context is that a request continues, without reading it into this process.

Each response knows its place in its chain, and the bytes before it, since its insert: so of a chain only the newest
row is looked at. The context itself: contents.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Connection, Database, one
from app.store.rows import HasContext

_PREVIOUS = text(
    """
    SELECT id, status, store, previous_response_id, call_ids, chain_length, sent_to,
        context_bytes + input_bytes + output_bytes AS bytes
    FROM responses WHERE id = :id AND project = :project
    """
)
_CONVERSATION = text(
    """
    SELECT count(i.position) AS members, coalesce(max(i.position), 0) AS last_position,
        coalesce(sum(i.bytes), 0) AS bytes
    FROM conversations c LEFT JOIN conversation_items i ON i.conversation_id = c.id
    WHERE c.id = :id AND c.project = :project
    GROUP BY c.id
    """
)


@dataclass(frozen=True, slots=True)
class ContextSize:
    """Size of a chain of responses, or of a conversation."""

    count: int = 0
    """Responses of a chain, items of a conversation."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PreviousResponse:
    """The facts about the response that a request continues. They are read without its items."""

    id: str
    status: Status
    store: bool
    previous: str | None
    """The response that it continues itself."""
    call_ids: frozenset[str]
    """Ids of the calls in its input and output that the client runs."""
    chain: ContextSize
    """The response and all that it continues."""
    node: str | None = None
    """Node of the worker that ran it."""


@dataclass(frozen=True, slots=True)
class ConversationSize:
    size: ContextSize
    last_position: int
    """Position of the newest item; 0 in an empty conversation."""


async def context_bytes(db: Database, row: HasContext) -> int:
    """The bytes that a worker reads of what the response continues (`context_items`), or a little more."""
    if row.request.get("previous_response_id") is not None:
        return row.context_bytes
    if row.conversation_id is not None:
        found = await conversation_size(db, row.project, row.conversation_id)
        return 0 if found is None else found.size.bytes
    return 0


async def find_previous(db: Database, project: str, response_id: str) -> PreviousResponse | None:
    """Returns None if the project has no response with that id."""
    rows = await db.execute(_PREVIOUS, {"id": response_id, "project": project})
    if not rows:
        return None
    (row,) = rows
    chain = ContextSize(row.chain_length, row.bytes)
    calls = frozenset(row.call_ids or ())
    found = (row.id, Status(row.status), row.store, row.previous_response_id, calls, chain)
    return PreviousResponse(*found, row.sent_to)


async def conversation_size(on: Database | Connection, project: str, conversation_id: str) -> ConversationSize | None:
    """Returns the size of all items of a conversation, or None if the project has none with that id."""
    return await one(_conversation_size, on, _CONVERSATION, {"id": conversation_id, "project": project})


def _conversation_size(members: int, bytes: int, last_position: int) -> ConversationSize:
    return ConversationSize(ContextSize(members, int(bytes)), last_position)
