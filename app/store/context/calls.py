"""Which calls a chain of responses, or a conversation, has: by id, without reading any of it into this process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson
from sqlalchemy import TextClause, text

from app.store.context.chain import chain
from app.store.database import Database

# The text of the JSON is searched, not the JSON: Postgres cannot look into JSON with U+0000. A quote within a string is
# escaped, so what matches is a key. An output has the key as well, but was accepted only after its call.
_CALL_ID = r'"call_id": ?("(?:[^"\\]|\\.)*")'


# Stops at the first response of the chain with which nothing is missing any more. The text of each is searched once.
def _missing_after(before: str) -> str:
    return f"""ARRAY(
        SELECT unnest({before})
        EXCEPT SELECT (regexp_matches(CAST(r.request AS text), :call_id, 'g'))[1]
        EXCEPT SELECT (regexp_matches(CAST(r.output AS text), :call_id, 'g'))[1]
    )"""


_IDS = "CAST(:ids AS text[])"
_CHAIN = text(
    f"""
    {chain(_missing_after, _IDS, "cardinality(c.state) > 0")}
    SELECT coalesce((SELECT state FROM chain ORDER BY depth DESC LIMIT 1), {_IDS})
    """
)
_CONVERSATION = text(
    r"""
    SELECT ARRAY(
        SELECT unnest(CAST(:ids AS text[]))
        EXCEPT SELECT (regexp_matches(CAST(item AS text), :call_id, 'g'))[1]
        FROM conversation_items WHERE conversation_id = :conversation
    )
    """
)


async def without_call_in_chain(db: Database, project: str, response_id: str, call_ids: Collection[str]) -> set[str]:
    """Returns those of `call_ids` that no item has: neither of the response, nor of any that it continues."""
    return await _missing(db, _CHAIN, call_ids, {"id": response_id, "project": project})


async def without_call_in_conversation(db: Database, conversation_id: str, call_ids: Collection[str]) -> set[str]:
    """Returns those of `call_ids` that no item of the conversation has."""
    return await _missing(db, _CONVERSATION, call_ids, {"conversation": conversation_id})


async def _missing(
    db: Database, statement: TextClause, call_ids: Collection[str], where: Mapping[str, Any]
) -> set[str]:
    """Call ids are compared as JSON writes them."""
    encoded = {orjson.dumps(call_id).decode(): call_id for call_id in call_ids}
    async with db.autocommit() as connection:
        values = {**where, "ids": list(encoded), "call_id": _CALL_ID}
        missing = (await connection.execute(statement, values)).scalar_one()
    return {encoded[each] for each in missing}
