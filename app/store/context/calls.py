"""The calls and items of a chain of responses, or of a conversation: by ids, which are stored beside the items."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, text

from app.store.context.items import CHAIN, responses_of
from app.store.database import Database

# It stops at the first response of the chain with which nothing is missing any more.
_CHAIN = text(
    """
    WITH RECURSIVE chain AS (
        SELECT r.previous_response_id AS previous, 0 AS depth, CASE WHEN r.call_ids IS NULL THEN CAST(:ids AS text[])
            ELSE ARRAY(SELECT unnest(CAST(:ids AS text[])) EXCEPT SELECT unnest(r.call_ids)) END AS missing
        FROM responses r WHERE r.id = :id AND r.project = :project
        UNION ALL
        SELECT r.previous_response_id, c.depth + 1, CASE WHEN r.call_ids IS NULL THEN c.missing
            ELSE ARRAY(SELECT unnest(c.missing) EXCEPT SELECT unnest(r.call_ids)) END
        FROM chain c JOIN responses r ON r.id = c.previous AND r.project = :project WHERE cardinality(c.missing) > 0
    )
    SELECT coalesce((SELECT missing FROM chain ORDER BY depth DESC LIMIT 1), CAST(:ids AS text[]))
    """
)
_CONVERSATION = text(
    """
    SELECT ARRAY(
        SELECT unnest(CAST(:ids AS text[]))
        EXCEPT SELECT call_id FROM conversation_items
        WHERE conversation_id = :id AND project = :project AND call_id = ANY(CAST(:ids AS text[]))
    )
    """
)
# An id that the server made tells its response.
_TAKEN_IN_CHAIN = text(
    f"""
    {CHAIN}
    SELECT i.id FROM unnest(CAST(:ids AS text[]), CAST(:owners AS text[])) AS i(id, owner)
    WHERE i.owner IN (SELECT id FROM chain)
        OR i.id IN (SELECT unnest(r.input_ids) FROM chain c JOIN responses r ON r.id = c.id)
    LIMIT 1
    """
)
_TAKEN_IN_CONVERSATION = text(
    """
    SELECT id FROM conversation_items
    WHERE conversation_id = :id AND project = :project AND id = ANY(CAST(:ids AS text[])) LIMIT 1
    """
)


async def taken_in_chain(db: Database, project: str, response_id: str, item_ids: Sequence[str]) -> str | None:
    """Returns one of `item_ids` that an item has already: of the response, or of any that it continues."""
    owners = [next(iter(responses_of([item_id])), None) for item_id in item_ids]
    values = {"id": response_id, "project": project, "ids": item_ids, "owners": owners}
    rows = await db.execute(_TAKEN_IN_CHAIN, values)
    return rows[0].id if rows else None


async def taken_in_conversation(
    db: Database, project: str, conversation_id: str, item_ids: Sequence[str]
) -> str | None:
    """Returns one of `item_ids` that an item of the conversation has already."""
    rows = await db.execute(_TAKEN_IN_CONVERSATION, {"id": conversation_id, "project": project, "ids": item_ids})
    return rows[0].id if rows else None


async def without_call_in_chain(db: Database, project: str, response_id: str, call_ids: Collection[str]) -> set[str]:
    """Returns those of `call_ids` that no item has: neither of the response, nor of any that it continues."""
    return await _missing(db, _CHAIN, call_ids, {"id": response_id, "project": project})


async def without_call_in_conversation(
    db: Database, project: str, conversation_id: str, call_ids: Collection[str]
) -> set[str]:
    """Returns those of `call_ids` that no item of the conversation has."""
    return await _missing(db, _CONVERSATION, call_ids, {"id": conversation_id, "project": project})


async def _missing(
    db: Database, statement: TextClause, call_ids: Collection[str], where: Mapping[str, Any]
) -> set[str]:
    async with db.autocommit() as connection:
        return set((await connection.execute(statement, {**where, "ids": list(call_ids)})).scalar_one())
