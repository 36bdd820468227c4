"""Lists, a page at a time, as OpenAI's API pages them."""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.errors import InvalidRequest
from app.protocol.text import shortened
from app.protocol.types import Json
from app.store.paging import Page

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


def no_such_entry(name: str, cursor: str) -> str:
    """Returns what a client is told of a cursor, its parameter `name`, that is no entry of the list."""
    return f"Invalid '{name}': there is no item '{shortened(cursor)}' in this list."


def unknown_cursor(page: Page) -> InvalidRequest:
    """Returns the error for the page's cursor."""
    name, cursor = ("before", page.before) if page.after is None else ("after", page.after)
    return InvalidRequest(no_such_entry(name, cursor or ""), name, "invalid_value")


def page_of(entries: Sequence[Json], page: Page) -> Json:
    """Returns a page of `entries`, a whole list with the oldest first. Raises InvalidRequest."""
    ordered = list(reversed(entries)) if page.descending else list(entries)
    cursor = page.before if page.after is None else page.after
    if cursor is not None:
        index = next((index for index, entry in enumerate(ordered) if entry["id"] == cursor), None)
        if index is None:
            raise unknown_cursor(page)
        ordered = ordered[index + 1 :] if page.after is not None else ordered[:index]
    has_more = len(ordered) > page.limit
    backwards = page.after is None and page.before is not None
    return list_object(ordered[-page.limit :] if backwards else ordered[: page.limit], has_more=has_more)


def list_object(entries: Sequence[Json], *, has_more: bool = False) -> Json:
    """Returns a list object with all `entries`."""
    data = list(entries)
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
