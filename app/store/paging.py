"""A page of a list that is ordered by time and id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, Select, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True)
class Page:
    """Up to `limit` entries behind the entry with the id `after`, or in front of the one with the id `before`."""

    limit: int
    after: str | None = None
    before: str | None = None
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a page, in the list's order, and whether there are more in the page's direction."""

    rows: list[Row[Any]]
    has_more: bool


async def read_page(
    connection: AsyncConnection,
    statement: Select[Any],
    keys: tuple[Column[Any], Column[Any]],
    page: Page,
    owned: Sequence[ColumnElement[bool]] = (),
) -> Found | None:
    """Returns a page of the statement's rows, or None if the cursor names none of those that are `owned`.

    `keys` are the columns of time and id. The cursor may be a row that is owned, but not in the list any more.
    """
    time, key = keys
    cursor = page.before if page.after is None else page.after
    backwards = page.after is None and page.before is not None
    descending = page.descending != backwards
    if cursor is not None:
        place = (await connection.execute(select(time, key).where(key == cursor, *owned))).one_or_none()
        if place is None:
            return None
        here, there = tuple_(time, key), tuple_(literal(place[0], time.type), literal(place[1], key.type))
        statement = statement.where(here < there if descending else here > there)
    order = (time.desc(), key.desc()) if descending else (time, key)
    found = list(await connection.execute(statement.where(*owned).order_by(*order).limit(page.limit + 1)))
    rows = found[: page.limit]
    return Found(rows[::-1] if backwards else rows, len(found) > page.limit)
