"""Lists, a page at a time, as OpenAI's API pages them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.protocol.errors import InvalidRequest
from app.protocol.text import shortened
from app.protocol.types import Json

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Up to `limit` entries after the entry with the id `after`; the newest first if `descending`."""

    after: str | None = None
    limit: int = DEFAULT_LIMIT
    descending: bool = True


def unknown_cursor(cursor: str, name: str = "after") -> InvalidRequest:
    message = f"Invalid '{name}': there is no item '{shortened(cursor)}' in this list."
    return InvalidRequest(message, name, "invalid_value")


def page_of(items: Sequence[Json], query: PageQuery) -> Json:
    """Returns a page of `items`, a whole list with the oldest first. Raises InvalidRequest."""
    ordered = list(reversed(items)) if query.descending else list(items)
    start = 0
    if query.after is not None:
        index = next((index for index, item in enumerate(ordered) if item["id"] == query.after), None)
        if index is None:
            raise unknown_cursor(query.after)
        start = index + 1
    return list_object(ordered[start : start + query.limit + 1], query.limit)


def list_object(found: Sequence[Json], limit: int) -> Json:
    """Returns a list object with the first `limit` entries; an entry beyond them sets `has_more`."""
    return page_object(found[:limit], has_more=len(found) > limit)


def page_object(entries: Sequence[Json], *, has_more: bool) -> Json:
    """Returns a list object with all `entries`."""
    data = list(entries)
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
