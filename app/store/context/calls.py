"""Which calls a chain of responses, or a conversation, has: by the ids that are stored beside their items."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import TextClause, text

from app.store.context.chain import chain
from app.store.database import Database


# Stops at the first response of the chain with which nothing is missing any more.
def _missing_after(before: str) -> str:
    return f"""CASE WHEN r.call_ids IS NULL THEN {before} ELSE
        ARRAY(SELECT unnest({before}) EXCEPT SELECT unnest(r.call_ids)) END"""


_IDS = "CAST(:ids AS text[])"
_CHAIN = text(
    f"""
    {chain(_missing_after, _IDS, "cardinality(c.state) > 0")}
    SELECT coalesce((SELECT state FROM chain ORDER BY depth DESC LIMIT 1), {_IDS})
    """
)
_CONVERSATION = text(
    f"""
    SELECT ARRAY(
        SELECT unnest({_IDS})
        EXCEPT SELECT call_id FROM conversation_items
        WHERE conversation_id = :id AND project = :project AND call_id = ANY({_IDS})
    )
    """
)


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
