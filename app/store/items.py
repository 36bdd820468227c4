"""Finding stored items by their ids, for references."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import text

from app.protocol.types import Json
from app.store.database import Database

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]+)_(?:in)?\d+", re.ASCII)
"""An item's id holds the id of its response, so no index of items is needed (app/protocol/events/writer.py)."""

# Postgres cannot look into JSON with U+0000, which a model may write. So it looks into a copy with another character.
_FIND = text(
    r"""
    SELECT item FROM responses r, LATERAL (
        SELECT value AS item FROM json_array_elements(r.request -> 'input')
        UNION ALL
        SELECT value FROM json_array_elements(r.output)
    ) i
    WHERE r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.store
        AND CAST(replace(CAST(item AS text), '\u0000', '\u0001') AS json) ->> 'id' = ANY(CAST(:ids AS text[]))
    UNION ALL
    SELECT i.item FROM conversation_items i JOIN conversations c ON c.id = i.conversation_id
    WHERE i.id = ANY(CAST(:ids AS text[])) AND c.project = :project
    """
)


async def find_items(db: Database, project: str, ids: Collection[str]) -> dict[str, Json]:
    """The stored items with these ids in the project's stored responses and conversations, by id.

    U+0000 in them becomes U+FFFD, because they may go into a request (app/protocol/requests/strict_json.py).
    """
    if not ids:
        return {}
    values = {"ids": list(ids), "responses": list(responses_of(ids)), "project": project}
    async with db.autocommit() as connection:
        return {item["id"]: _without_nul(item) for item in (await connection.execute(_FIND, values)).scalars()}


def responses_of(ids: Iterable[str]) -> Iterable[str]:
    """The ids of the responses that have, or had, items with these ids."""
    return (f"resp_{found.group(1)}" for item_id in ids if (found := _ITEM_ID.fullmatch(item_id)) is not None)


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(each) for each in value]
    return {key: _without_nul(each) for key, each in value.items()} if isinstance(value, dict) else value
