"""A page of a list that is ordered by age."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import text

from app.protocol.errors import InvalidRequest
from app.protocol.text import shortened
from app.store.database import Database

T = TypeVar("T")

LIST_PAGE_BYTES = 4 * 1024 * 1024
"""A page of items ends before it has more, as JSON, unless its first item alone has."""


@dataclass(frozen=True, slots=True)
class Page:
    """Up to `limit` entries behind the entry with the id `after`, or in front of the one with the id `before`."""

    limit: int
    after: str | None = None
    before: str | None = None
    descending: bool = False

    @property
    def cursor(self) -> str | None:
        return self.before if self.after is None else self.after

    @property
    def is_backwards(self) -> bool:
        """Whether the page ends at its cursor."""
        return self.after is None and self.before is not None

    def fitting(self, sizes: Iterable[int]) -> int:
        """How many entries the page has, if the ones next to its cursor have these sizes in bytes: one at least."""
        count = total = 0
        for size in sizes:
            total += size
            if count == self.limit or (count and total > LIST_PAGE_BYTES):
                break
            count += 1
        return count


class UnknownCursor(InvalidRequest):
    """The page's cursor names no entry of the list."""

    def __init__(self, page: Page) -> None:
        name = "before" if page.is_backwards else "after"
        message = f"Invalid '{name}': there is no item '{shortened(page.cursor or '')}' in this list."
        super().__init__(message, name, "invalid_value")


class Listing:
    """A list in the order of a column of age, and of `id` among those of the same age."""

    def __init__(self, rows: str, wanted: str = "true", age: str = "created_at") -> None:
        """`rows` is a query of all rows that a cursor may name, `wanted` the condition of those that the list has."""
        self._cursor = text(f"SELECT {age}, id FROM ({rows}) l WHERE id = :cursor")
        start = f"SELECT * FROM ({rows}) l WHERE {wanted}"
        self._pages = {
            (descending, behind): text(
                f"{start}{f' AND ({age}, id) {sign} (:age, :cursor)' if behind else ''}"
                f" ORDER BY {age}{order}, id{order} LIMIT :limit"
            )
            for descending, sign, order in ((False, ">", ""), (True, "<", " DESC"))
            for behind in (False, True)
        }

    async def read(
        self, db: Database, page: Page, make: Callable[..., T], values: Mapping[str, Any] | None = None
    ) -> tuple[list[T], bool]:
        """Returns what `make` makes of the columns of each row of a page, and whether there are more behind it.

        `values` are those of the list's own parameters. Raises UnknownCursor; a cursor may name a row that is not
        `wanted`.
        """
        values, cursor = values or {}, page.cursor
        bounds: dict[str, Any] = {"limit": page.limit + 1, "cursor": cursor}
        if cursor is not None:
            places = await db.execute(self._cursor, {**values, "cursor": cursor})
            if not places:
                raise UnknownCursor(page)
            bounds["age"] = places[0][0]
        statement = self._pages[page.descending != page.is_backwards, cursor is not None]
        found = await db.execute(statement, {**values, **bounds})
        entries = [make(**row._mapping) for row in found[: page.limit]]
        return entries[::-1] if page.is_backwards else entries, len(found) > page.limit
