"""The approvals of calls in a context, as they are stored beside the items."""

from __future__ import annotations

from sqlalchemy import text

from app.protocol.types import Json
from app.store.context.items import CHAIN
from app.store.database import Database, from_json

_CHAIN = text(
    f"""
    {CHAIN}
    SELECT a.approval FROM chain c JOIN responses r ON r.id = c.id,
        LATERAL unnest(r.approvals) WITH ORDINALITY AS a(approval, number)
    ORDER BY c.depth DESC, a.number
    """
)
_CONVERSATION = text(
    """
    SELECT approval FROM conversation_items
    WHERE conversation_id = :id AND project = :project AND position <= :until AND approval IS NOT NULL ORDER BY position
    """
)


async def approvals_in_chain(db: Database, project: str, response_id: str) -> list[Json]:
    """The approvals, their requests, calls and compactions of a response and all that it continues, oldest first.

    Each item has only the keys that say what belongs to what.
    """
    found = await db.execute(_CHAIN, {"id": response_id, "project": project})
    return [from_json(row.approval) for row in found]


async def approvals_in_conversation(db: Database, project: str, conversation_id: str, until: int) -> list[Json]:
    """The same of a conversation up to position `until`."""
    found = await db.execute(_CONVERSATION, {"id": conversation_id, "project": project, "until": until})
    return [from_json(row.approval) for row in found]
