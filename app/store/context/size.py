"""How large the context is that a request continues, without reading it into this process.

Each response knows its place in its chain, and the bytes before it, since its insert: so of a chain only the newest
row is looked at. The context itself: contents.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.responses.lookup import SMALL_COLUMNS, get
from app.store.rows import LargeRow, ResponseRow, row_or_large
from app.store.tables import responses

_OWN_BYTES = responses.c.input_bytes + responses.c.output_bytes
_WITH_SIZE: Select[Any] = select(*SMALL_COLUMNS, _OWN_BYTES.label("bytes"), responses.c.chain_length).where(
    responses.c.id == bindparam("id"), responses.c.project == bindparam("project")
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
    """Of a chain of responses, or of a conversation."""

    count: int = 0
    """Responses of a chain, items of a conversation."""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ConversationSize:
    size: ContextSize
    last_position: int
    """Of the newest item; 0 in an empty conversation."""


async def context_bytes(db: Database, row: ResponseRow) -> int:
    """The bytes that a worker reads of what the response continues (`context_items`), or a little more."""
    if row.request.get("previous_response_id") is not None:
        return row.context_bytes
    if row.conversation_id is not None:
        found = await conversation_size(db, row.project, row.conversation_id)
        return 0 if found is None else found.size.bytes
    return 0


async def get_with_chain_size(db: Database, project: str, response_id: str) -> tuple[ResponseRow, ContextSize] | None:
    """The response with the size of it and of all that it continues, or None if the project has none with that id."""
    async with db.autocommit() as connection:
        row = (await connection.execute(_WITH_SIZE, {"id": response_id, "project": project})).one_or_none()
    if row is None:
        return None
    own_bytes = row.bytes or 0  # NULL: its request is damaged, and fails whoever reads it
    found: ResponseRow | LargeRow | None = row_or_large(row)
    if isinstance(found, LargeRow):
        found = await get(db, project, response_id)
    return None if found is None else (found, ContextSize(row.chain_length, row.context_bytes + own_bytes))


async def conversation_size(db: Database, project: str, conversation_id: str) -> ConversationSize | None:
    """Returns the size of all items of a conversation, or None if the project has none with that id."""
    async with db.autocommit() as connection:
        return await size_on(connection, project, conversation_id)


async def size_on(connection: AsyncConnection, project: str, conversation_id: str) -> ConversationSize | None:
    """`conversation_size` within a transaction."""
    row = (await connection.execute(_CONVERSATION, {"id": conversation_id, "project": project})).one_or_none()
    return None if row is None else ConversationSize(ContextSize(row.members, int(row.bytes)), row.last_position)
