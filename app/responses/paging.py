"""Lists, a page at a time, as OpenAI's API pages them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.protocol.errors import InvalidRequest
from app.protocol.text import shortened
from app.protocol.types import Json

LIMIT = 20
MOST = 100


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Up to `limit` entries behind the one called `after`, the newest first where `descending`."""

    after: str | None = None
    limit: int = LIMIT
    descending: bool = True


def no_such_place(after: str) -> InvalidRequest:
    message = f"Invalid 'after': there is no item '{shortened(after)}' in this list."
    return InvalidRequest(message, "after", "invalid_value")


def page_of(items: Sequence[Json], query: PageQuery) -> Json:
    """The page of a whole list, oldest first. Raises InvalidRequest."""
    ordered = list(reversed(items)) if query.descending else list(items)
    start = 0
    if query.after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == query.after]
        if not places:
            raise no_such_place(query.after)
        start = places[0] + 1
    return list_object(ordered[start : start + query.limit + 1], query.limit)


def list_object(found: Sequence[Json], limit: int) -> Json:
    """The list object of up to `limit` of the entries that were found; one more says that there are more."""
    data = list(found[:limit])
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }
