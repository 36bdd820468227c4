"""Finding stored items by their ids, for references."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import text

from app.protocol.types import Json
from app.store.database import Database

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]+)_(?:in)?\d+", re.ASCII)
"""An item's id holds the id of its response, so no index of items is needed (app/protocol/events/writer.py)."""

# Postgres cannot look into JSON with U+0000, which tools return and models write. So it looks into a copy of an item
# with another character, and hands over a whole request.
_HAS_NUL = r"strpos(CAST(r.request AS text), '\u0000') > 0"
INPUT = f"CASE WHEN {_HAS_NUL} THEN r.request ELSE r.request -> 'input' END"
"""The input of the response `r`, or its whole request; `input_in` tells them apart."""

_CHOSEN = "r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.store"
_ITEM_TEXT_ID = r"CAST(replace(CAST(item AS text), '\u0000', '\u0001') AS json) ->> 'id'"
_ITEMS = rf"""
    responses r, LATERAL (
        SELECT value AS item FROM json_array_elements(CASE WHEN NOT {_HAS_NUL} THEN r.request -> 'input' END)
        UNION ALL
        SELECT value FROM json_array_elements(r.output)
    ) i
    WHERE {_CHOSEN} AND {_ITEM_TEXT_ID} = ANY(CAST(:ids AS text[]))
"""
_CONVERSATION_ITEMS = """
    conversation_items i JOIN conversations c ON c.id = i.conversation_id
    WHERE i.id = ANY(CAST(:ids AS text[])) AND c.project = :project
"""

_FIND = text(
    rf"""
    SELECT item FROM {_ITEMS}
    UNION ALL
    SELECT r.request FROM responses r WHERE {_CHOSEN} AND {_HAS_NUL}
    UNION ALL
    SELECT i.item FROM {_CONVERSATION_ITEMS}
    """
)
_MEASURE = text(
    rf"""
    SELECT {_ITEM_TEXT_ID} AS id, octet_length(CAST(item AS text)) AS bytes FROM {_ITEMS}
    UNION ALL
    SELECT NULL, octet_length(CAST(r.request AS text)) FROM responses r WHERE {_CHOSEN} AND {_HAS_NUL}
    UNION ALL
    SELECT i.id, octet_length(CAST(i.item AS text)) FROM {_CONVERSATION_ITEMS}
    """
)


@dataclass(frozen=True, slots=True)
class FoundSizes:
    """The bytes that `find_items` would read."""

    items: Mapping[str, int]
    """By the id of the item. An item of a request with U+0000 is not here: the whole request would be read."""
    read: int
    """Altogether."""


async def measure_items(db: Database, project: str, ids: Collection[str]) -> FoundSizes:
    """Returns how much `find_items` would read; reads none of it into this process."""
    async with db.autocommit() as connection:
        rows = (await connection.execute(_MEASURE, _values(project, ids))).all()
    sizes = {row.id: row.bytes for row in rows if row.id is not None}
    return FoundSizes(sizes, sum(row.bytes for row in rows))


async def find_items(db: Database, project: str, ids: Collection[str]) -> dict[str, Json]:
    """The stored items with these ids in the project's stored responses and conversations, by id."""
    if not ids:
        return {}
    async with db.autocommit() as connection:
        found = (await connection.execute(_FIND, _values(project, ids))).scalars().all()
    # Of items and requests, only items have ids.
    items = (item for each in found for item in ([each] if "id" in each else each["input"]))
    return {item["id"]: item for item in items if item["id"] in ids}


def _values(project: str, ids: Collection[str]) -> dict[str, object]:
    return {"ids": list(ids), "responses": list(responses_of(ids)), "project": project}


def input_in(found: Json | list[Json]) -> list[Json]:
    """The items in the value of `INPUT`."""
    return found if isinstance(found, list) else found["input"]


def responses_of(ids: Iterable[str]) -> Iterable[str]:
    """The ids of the responses that have, or had, items with these ids."""
    return (f"resp_{found.group(1)}" for item_id in ids if (found := _ITEM_ID.fullmatch(item_id)) is not None)
