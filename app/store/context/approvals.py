"""What a context holds about approvals of calls, without reading the rest of it into this process."""

from __future__ import annotations

from sqlalchemy import text

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, COMPACTION, MCP_CALL
from app.protocol.types import Json
from app.store.context.chain import chain
from app.store.database import Database

_KINDS = (APPROVAL_REQUEST, APPROVAL_RESPONSE, COMPACTION, MCP_CALL)
_TYPES = ", ".join(f"'{kind}'" for kind in _KINDS)


def _readable(value: str) -> str:
    """Postgres cannot look into JSON with U+0000. Of text without one of the types, it need not look at all."""
    found = " OR ".join(f"strpos(CAST({value} AS text), '\"{kind}\"') > 0" for kind in _KINDS)
    copy = rf"CAST(replace(CAST({value} AS text), '\u0000', '\u0001') AS json)"
    return f"CASE WHEN {found} THEN {copy} END"


_FIELDS = ", ".join(f"i.value ->> '{name}' AS {name}" for name in ("id", "type", "server_label", "approval_request_id"))

_CHAIN = text(
    f"""
    {chain()}
    SELECT {_FIELDS}
    FROM chain c JOIN responses r ON r.id = c.id, LATERAL (
        SELECT value, 0 AS part, ordinality
        FROM json_array_elements({_readable("r.request")} -> 'input') WITH ORDINALITY
        UNION ALL
        SELECT value, 1, ordinality FROM json_array_elements({_readable("r.output")}) WITH ORDINALITY
    ) i
    WHERE i.value ->> 'type' IN ({_TYPES})
    ORDER BY c.depth DESC, i.part, i.ordinality
    """
)
_CONVERSATION = text(
    f"""
    SELECT {_FIELDS} FROM (
        SELECT {_readable("item")} AS value, position FROM conversation_items
        WHERE conversation_id = :id AND position <= :until
    ) i
    WHERE i.value ->> 'type' IN ({_TYPES}) ORDER BY i.position
    """
)


async def approvals_in_chain(db: Database, project: str, response_id: str) -> list[Json]:
    """The approvals, their requests, calls and compactions of a response and all that it continues, oldest first.

    Each item has only the keys that say what belongs to what.
    """
    async with db.autocommit() as connection:
        rows = await connection.execute(_CHAIN, {"id": response_id, "project": project})
        return [dict(row._mapping) for row in rows]


async def approvals_in_conversation(db: Database, conversation_id: str, until: int) -> list[Json]:
    """The same of a conversation up to position `until`."""
    async with db.autocommit() as connection:
        rows = await connection.execute(_CONVERSATION, {"id": conversation_id, "until": until})
        return [dict(row._mapping) for row in rows]
