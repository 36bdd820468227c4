"""How large the context is that a request continues, without reading it into this process.

Each response knows its place in its chain, and the bytes before it, since its insert: so of a chain only the newest
row is looked at, and those of version 0.2, which do not know. The context itself: context.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, bindparam, column, select, text, true

from app.store.context.items import INPUT
from app.store.database import Database
from app.store.responses.lookup import SMALL_COLUMNS, get
from app.store.rows import LargeRow, ResponseRow, row_or_large
from app.store.tables import responses

BYTES = f"""(
    octet_length(CAST({INPUT} AS text))
    + coalesce(octet_length(CAST(r.output AS text)), 0) + coalesce(octet_length(CAST(r.tool_results AS text)), 0)
)"""
"""What a worker reads of the response `r` for those that continue it."""

_CHAIN_SIZE = text(
    f"""
    WITH RECURSIVE chain (previous, project, length, before, bytes, walked) AS (
        SELECT r.previous_response_id, r.project, r.chain_length, r.context_bytes, CAST({BYTES} AS bigint), 1
        FROM responses r WHERE r.id = :id AND r.project = :project
        UNION ALL
        SELECT r.previous_response_id, r.project, r.chain_length, r.context_bytes, c.bytes + {BYTES}, c.walked + 1
        FROM chain c JOIN responses r ON r.id = c.previous AND r.project = c.project
        WHERE c.before IS NULL AND c.walked <= :most_responses AND c.bytes <= :most_bytes
    )
    SELECT walked - 1 + coalesce(length, 1) AS members, bytes + coalesce(before, 0) AS bytes
    FROM chain ORDER BY walked DESC LIMIT 1
    """
)
_SIZE = _CHAIN_SIZE.columns(column("members", Integer), column("bytes", BigInteger)).subquery("size")
_WITH_SIZE: Select[Any] = (
    select(*SMALL_COLUMNS, _SIZE.c.members, _SIZE.c.bytes)
    .select_from(responses.join(_SIZE, true()))
    .where(responses.c.id == bindparam("id"), responses.c.project == bindparam("project"))
)
_CONVERSATION = text(
    """
    SELECT count(i.position) AS members, coalesce(max(i.position), 0) AS last_position, coalesce(sum(coalesce(
        i.bytes, octet_length(CAST(i.item AS text)) + coalesce(octet_length(CAST(i.tool_results AS text)), 0)
    )), 0) AS bytes
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
    if (previous := row.request.get("previous_response_id")) is not None:
        return row.context_bytes if row.context_bytes is not None else await _chain_bytes(db, row.project, previous)
    if row.conversation_id is not None:
        found = await conversation_size(db, row.project, row.conversation_id)
        return 0 if found is None else found.size.bytes
    return 0


async def _chain_bytes(db: Database, project: str, response_id: str) -> int:
    values = {"id": response_id, "project": project, "most_responses": 2**31 - 1, "most_bytes": 2**62}
    async with db.autocommit() as connection:
        row = (await connection.execute(_CHAIN_SIZE, values)).one_or_none()
    return 0 if row is None else int(row.bytes)


async def get_with_chain_size(
    db: Database, project: str, response_id: str, most: ContextSize
) -> tuple[ResponseRow, ContextSize] | None:
    """The response with the size of it and of all that it continues, or None if the project has none with that id.

    Of a chain beyond `most`, the size is something beyond it.
    """
    values = {"id": response_id, "project": project, "most_responses": most.count, "most_bytes": most.bytes}
    async with db.autocommit() as connection:
        row = (await connection.execute(_WITH_SIZE, values)).one_or_none()
    if row is None:
        return None
    found: ResponseRow | LargeRow | None = row_or_large(row)
    if isinstance(found, LargeRow):
        found = await get(db, project, response_id)
    return None if found is None else (found, ContextSize(row.members, row.bytes))


async def conversation_size(db: Database, project: str, conversation_id: str) -> ConversationSize | None:
    """Returns the size of all items of a conversation, or None if the project has none with that id."""
    async with db.autocommit() as connection:
        row = (await connection.execute(_CONVERSATION, {"id": conversation_id, "project": project})).one_or_none()
    return None if row is None else ConversationSize(ContextSize(row.members, int(row.bytes)), row.last_position)
