"""Finding stored items by their ids, for references."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import text

from app.heavy import off_loop
from app.protocol.requests.strict_json import loads
from app.protocol.types import Json
from app.sizes import is_large
from app.store.database import Database

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]+)_(in)?\d+", re.ASCII)
"""An item's id holds the id of its response, and whether it is of its input, so no index of items is needed
(app/protocol/events/writer.py, app/protocol/requests/items/any_item.py)."""

# Postgres cannot look into JSON with U+0000, which tools return and models write. So it looks into a copy of an item
# with another character, and hands over a whole request.
_HAS_NUL = r"strpos(CAST(r.request AS text), '\u0000') > 0"
INPUT = f"CASE WHEN {_HAS_NUL} THEN r.request ELSE r.request -> 'input' END"
"""The input of the response `r`, or its whole request; `input_in` tells them apart."""


def raw(column: str) -> str:
    """The JSON of a column as bytes: the driver would parse it on the event loop, all of it at once."""
    return f"convert_to(CAST({column} AS text), 'UTF8')"


CHAIN = """
    WITH RECURSIVE chain AS (
        SELECT r.id, r.previous_response_id AS previous, 0 AS depth
        FROM responses r WHERE r.id = :id AND r.project = :project
        UNION ALL
        SELECT r.id, r.previous_response_id, c.depth + 1
        FROM chain c JOIN responses r ON r.id = c.previous AND r.project = :project
    )
"""
"""The response `id`, and by primary key all that it continues."""
_IN_INPUT, _IN_OUTPUT = (f"r.id = ANY(CAST(:{part} AS text[]))" for part in ("inputs", "outputs"))
_CHOSEN = "r.id = ANY(CAST(:inputs AS text[]) || CAST(:outputs AS text[])) AND r.project = :project AND r.store"
_WHOLE = f"{_IN_INPUT} AND {_HAS_NUL}"
_ITEM_TEXT_ID = r"CAST(replace(CAST(item AS text), '\u0000', '\u0001') AS json) ->> 'id'"
_ITEMS = rf"""
    responses r, LATERAL (
        SELECT value AS item FROM json_array_elements(
            CASE WHEN {_IN_INPUT} AND NOT {_HAS_NUL} THEN r.request -> 'input' END)
        UNION ALL
        SELECT value FROM json_array_elements(CASE WHEN {_IN_OUTPUT} THEN r.output END)
    ) i
    WHERE {_CHOSEN} AND {_ITEM_TEXT_ID} = ANY(CAST(:ids AS text[]))
"""
_CONVERSATION_ITEMS = """
    conversation_items i JOIN conversations c ON c.id = i.conversation_id
    WHERE i.id = ANY(CAST(:ids AS text[])) AND c.project = :project
"""

_SEARCHED = text(
    f"""
    SELECT coalesce((
        SELECT sum(CASE WHEN {_IN_INPUT} THEN r.request_bytes ELSE 0 END
            + CASE WHEN {_IN_OUTPUT} THEN r.output_bytes ELSE 0 END) FROM responses r WHERE {_CHOSEN}
    ), 0) + coalesce((SELECT sum(i.bytes) FROM {_CONVERSATION_ITEMS}), 0)
    """
)
_FIND = text(
    rf"""
    SELECT {raw("item")} AS item FROM {_ITEMS}
    UNION ALL
    SELECT {raw("r.request")} FROM responses r WHERE {_CHOSEN} AND {_WHOLE}
    UNION ALL
    SELECT {raw("i.item")} FROM {_CONVERSATION_ITEMS}
    """
)
_MEASURE = text(
    rf"""
    SELECT {_ITEM_TEXT_ID} AS id, octet_length(CAST(item AS text)) AS bytes FROM {_ITEMS}
    UNION ALL
    SELECT NULL, octet_length(CAST(r.request AS text)) FROM responses r WHERE {_CHOSEN} AND {_WHOLE}
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
    searched: int
    """By Postgres, to find them."""


async def searched_bytes(db: Database, project: str, ids: Collection[str]) -> int:
    """Returns how many bytes Postgres searches for the items with these ids; it reads none of them for that."""
    return int((await db.execute(_SEARCHED, _values(project, ids)))[0][0])


async def measure_items(db: Database, project: str, ids: Collection[str], searched: int) -> FoundSizes:
    """Returns how much `find_items` would read; reads none of it into this process. `searched`: of `searched_bytes`."""
    rows = await db.execute(_MEASURE, _values(project, ids), large=is_large(searched))
    sizes = {row.id: row.bytes for row in rows if row.id is not None}
    return FoundSizes(sizes, sum(row.bytes for row in rows), searched)


async def find_items(db: Database, project: str, ids: Collection[str], sizes: FoundSizes) -> dict[str, Json]:
    """The stored items with these ids in the project's stored responses and conversations, by id.

    `sizes` is what `measure_items` returned for them.
    """
    if not ids:
        return {}
    rows = await db.execute(_FIND, _values(project, ids), large=is_large(max(sizes.read, sizes.searched)))

    def by_id() -> dict[str, Json]:
        found = (loads(row.item) for row in rows)
        # Of items and requests, only items have ids.
        items = (item for each in found for item in ([each] if "id" in each else each["input"]))
        return {item["id"]: item for item in items if item["id"] in ids}

    return await off_loop(by_id, sizes.read)


def _values(project: str, ids: Collection[str]) -> dict[str, object]:
    found = [match for item_id in ids if (match := _ITEM_ID.fullmatch(item_id)) is not None]
    inputs, outputs = ([f"resp_{match[1]}" for match in found if bool(match[2]) is part] for part in (True, False))
    return {"ids": list(ids), "inputs": inputs, "outputs": outputs, "project": project}


def input_in(found: Json | list[Json]) -> list[Json]:
    """The items in the value of `INPUT`."""
    return found if isinstance(found, list) else found["input"]


def responses_of(ids: Iterable[str]) -> Iterable[str]:
    """The ids of the responses that have, or had, items with these ids."""
    return (f"resp_{found.group(1)}" for item_id in ids if (found := _ITEM_ID.fullmatch(item_id)) is not None)
