"""The calls, approvals and ids of what a request continues: they are stored beside the items."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, TextClause, text

from app.protocol.types import Json
from app.store.context.items import CHAIN, responses_of
from app.store.database import Database, from_json

# It stops at the first response of the chain with which nothing is missing any more.
_MISSING_IN_CHAIN = text(
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
_MISSING_IN_CONVERSATION = text(
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
_APPROVALS_IN_CHAIN = text(
    f"""
    {CHAIN}
    SELECT a.approval FROM chain c JOIN responses r ON r.id = c.id,
        LATERAL unnest(r.approvals) WITH ORDINALITY AS a(approval, number)
    ORDER BY c.depth DESC, a.number
    """
)
_APPROVALS_IN_CONVERSATION = text(
    """
    SELECT approval FROM conversation_items
    WHERE conversation_id = :id AND project = :project AND position <= :until AND approval IS NOT NULL ORDER BY position
    """
)


@dataclass(frozen=True, slots=True)
class Past:
    """What a request continues: the response with this id and all that it continues, or the conversation."""

    project: str
    id: str
    until: int | None = None
    """The position of a conversation's last item; None: it is a chain of responses."""


async def taken(db: Database, past: Past, item_ids: Sequence[str]) -> str | None:
    """Returns one of `item_ids` that an item has already."""
    owners = [next(iter(responses_of([item_id])), None) for item_id in item_ids]
    rows = await _find(db, past, _TAKEN_IN_CHAIN, _TAKEN_IN_CONVERSATION, ids=item_ids, owners=owners)
    return rows[0].id if rows else None


async def without_call(db: Database, past: Past, call_ids: Collection[str]) -> set[str]:
    """Returns those of `call_ids` that no item has."""
    return set((await _find(db, past, _MISSING_IN_CHAIN, _MISSING_IN_CONVERSATION, ids=list(call_ids)))[0][0])


async def approvals(db: Database, past: Past) -> list[Json]:
    """The approvals, their requests, calls and compactions, up to a conversation's last item, oldest first.

    Each item has only the keys that say what belongs to what.
    """
    found = await _find(db, past, _APPROVALS_IN_CHAIN, _APPROVALS_IN_CONVERSATION)
    return [from_json(row.approval) for row in found]


async def _find(
    db: Database, past: Past, in_chain: TextClause, in_conversation: TextClause, **values: Any
) -> Sequence[Row[Any]]:
    statement = in_chain if past.until is None else in_conversation
    return await db.execute(statement, {"id": past.id, "project": past.project, "until": past.until, **values})
