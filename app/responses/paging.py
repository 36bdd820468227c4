"""Lists, a page at a time, as OpenAI's API pages them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import orjson

from app.protocol.types import Json
from app.store.paging import Page, UnknownCursor

Encoded: TypeAlias = bytes
"""The JSON of an answer."""

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


def page_of(entries: Sequence[Json], page: Page) -> Encoded:
    """Returns a page of `entries`, a whole list with the oldest first. Raises UnknownCursor."""
    ordered = list(reversed(entries)) if page.descending else list(entries)
    if page.cursor is not None:
        index = next((index for index, entry in enumerate(ordered) if entry["id"] == page.cursor), None)
        if index is None:
            raise UnknownCursor(page)
        ordered = ordered[index + 1 :] if page.after is not None else ordered[:index]
    behind = ordered[::-1] if page.is_backwards else ordered  # Next to the cursor first.
    encoded = [orjson.dumps(entry) for entry in behind[: page.limit]]
    fitting = page.fitting(map(len, encoded))
    listed = list(zip((entry["id"] for entry in behind), encoded[:fitting], strict=False))
    return encoded_list(listed[::-1] if page.is_backwards else listed, has_more=fitting < len(behind))


def encoded_list(entries: Sequence[tuple[str, bytes]], *, has_more: bool) -> Encoded:
    """Returns a list object with all `entries`: the id of each, and its JSON.

    An empty list has empty ids: openai's lists have strings there, and take an empty one for the end.
    """
    ends = {"first_id": entries[0][0] if entries else "", "last_id": entries[-1][0] if entries else ""}
    data = [orjson.Fragment(encoded) for _, encoded in entries]
    return orjson.dumps({"object": "list", "data": data, **ends, "has_more": has_more})
