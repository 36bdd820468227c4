"""Pages and counts of the responses that match a filter.

A page ends once it has read MAX_READ rows, or for PAGE_SECONDS: then it has fewer entries than it might, and a place
from where the next one goes on. Every other filter has an index, or matches often; one of metadata, of a key or of a
model that is rare is read through to the end, page after page.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text

from app.protocol.status import Status
from app.protocol.types import Json
from app.store.database import Database, one
from app.store.operations.filters import Place, ResponseFilter, window
from app.store.paging import Page, UnknownCursor

WINDOWS = (256, *[2048] * 8)
"""Rows that a page reads, one after the other until it is full, or has taken PAGE_SECONDS."""
LARGE_WINDOWS = (256,) * 65
"""Where each row's metadata is read: 2,048 rows may have 32 MB, and take a second."""
PAGE_SECONDS = 0.05
MAX_READ = sum(WINDOWS)
MAX_COUNTED = 500_000
"""Rows that a count reads."""


@dataclass(frozen=True, slots=True)
class ListedResponse:
    """A response without what its request and its answer say; columns of the table by their names."""

    id: str
    project: str
    model: str
    key_id: str | None
    queue: str
    priority: int
    status: str
    background: bool
    stream: bool
    store: bool
    previous_response_id: str | None
    conversation_id: str | None
    batch_id: str | None
    retry_of: str | None
    metadata: Json | None
    created_at: datetime
    inserted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    sent_at: datetime | None
    sent_to: str | None
    worker: str | None
    attempt: int
    crashes: int
    yields: int
    error: Json | None
    error_code: str | None
    incomplete_details: Json | None
    usage: Json | None
    request_bytes: int
    output_bytes: int
    log_bytes: int
    position: int

    @property
    def place(self) -> Place:
        return Place(self.inserted_at, self.position)


@dataclass(frozen=True, slots=True)
class ResponsePage:
    """A page of a list."""

    entries: Sequence[ListedResponse]
    has_more: bool
    """Whether there may be more behind it."""
    last_id: str | None
    """The response from where the next page goes on: the last entry, or the last that was read; None: none was read."""
    is_cut: bool = False
    """Whether the page has fewer entries than were asked for because it has read for long enough."""


COLUMNS = ", ".join(f"r.{name}" for name in ListedResponse.__slots__)
"""Columns of a ListedResponse, from the row `r`."""
# A bad plan would read the whole table, or all that a filter matches, to sort it: with old statistics Postgres does not
# know how few rows a window has. The indexes have the order.
_BY_INDEX = text(
    """
    SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
        set_config('jit', 'off', true)
    """
)
_PAGE = """
    WITH seen AS MATERIALIZED ({window}), found AS MATERIALIZED (
        SELECT * FROM seen WHERE matches ORDER BY inserted_at {direction}, position {direction} LIMIT :limit
    ), last AS (
        SELECT id, inserted_at, position, (SELECT count(*) FROM seen) AS read FROM seen
        ORDER BY inserted_at {opposite}, position {opposite} LIMIT 1
    )
    SELECT l.id AS last_id, l.inserted_at AS last_at, l.position AS last_position, l.read, f.id IS NOT NULL AS is_found,
        {columns}
    FROM last l LEFT JOIN found f ON true LEFT JOIN LATERAL (
        SELECT * FROM responses r WHERE r.id = f.id LIMIT 1
    ) r ON true
    ORDER BY f.inserted_at {direction}, f.position {direction}
"""
_COUNT = "SELECT count(*) AS read, count(*) FILTER (WHERE matches) AS matching FROM ({window}) w"
_PLACE = text(
    """
    SELECT inserted_at, position FROM responses
    WHERE id = :id AND (CAST(:project AS text) IS NULL OR project = CAST(:project AS text))
    """
)


async def find_page(db: Database, only: ResponseFilter, page: Page) -> ResponsePage:
    """Returns the page of the responses that match. Its cursor is `after`.

    Raises UnknownCursor if there is no such response (in the filter's project); whether it matches does not matter.
    """
    place: Place | None = None
    if page.after is not None:
        place = await one(Place, db, _PLACE, {"id": page.after, "project": only.project})
        if place is None:
            raise UnknownCursor(page)
    entries: list[ListedResponse] = []
    last_id: str | None = None
    until = time.monotonic() + PAGE_SECONDS
    async with db.begin() as connection:
        await connection.execute(_BY_INDEX)
        for size in LARGE_WINDOWS if only.metadata else WINDOWS:
            wanted = window(only, Status, size, place, descending=page.descending)
            direction, opposite = ("DESC", "") if page.descending else ("", "DESC")
            statement = _PAGE.format(window=wanted.text, columns=COLUMNS, direction=direction, opposite=opposite)
            values = {**wanted.values, "limit": page.limit + 1 - len(entries)}
            rows = (await connection.execute(text(statement), values)).all()
            entries += [_listed(row) for row in rows if row.is_found]
            if len(entries) > page.limit:
                return ResponsePage(entries[: page.limit], True, entries[page.limit - 1].id)
            if rows:
                last_id, place = rows[0].last_id, Place(rows[0].last_at, rows[0].last_position)
            if not rows or rows[0].read < size:
                return ResponsePage(entries, False, last_id)
            if time.monotonic() > until:
                break
    return ResponsePage(entries, True, last_id, is_cut=True)


def _listed(row: Row[Any]) -> ListedResponse:
    return ListedResponse(**{name: row._mapping[name] for name in ListedResponse.__slots__})


_NODES = """
    node AS (
        (SELECT r.sent_to FROM responses r
            WHERE r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.sent_to IS NOT NULL ORDER BY r.sent_to LIMIT 1)
        UNION ALL
        SELECT n.sent_to FROM node o CROSS JOIN LATERAL (
            SELECT r.sent_to FROM responses r
            WHERE r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.sent_to > o.sent_to ORDER BY r.sent_to LIMIT 1
        ) n
    )"""
"""The workers to which something was sent that has not ended, as `node`: from one to the next over the index."""


def begun(columns: str) -> str:
    """These columns of the responses that were sent, that run, or that go on later, as `begun`: for WITH RECURSIVE."""
    return f"""
    {_NODES}, begun AS (
        SELECT r.* FROM node n CROSS JOIN LATERAL (
            SELECT {columns} FROM responses r
            WHERE r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.sent_to = n.sent_to OFFSET 0
        ) r
        UNION ALL
        SELECT {columns} FROM responses r WHERE r.sent_at IS NOT NULL AND r.finished_at IS NULL AND r.sent_to IS NULL
        UNION ALL
        SELECT {columns} FROM responses r WHERE r.status = 'in_progress' AND r.worker IS NULL AND r.sent_at IS NULL
    )"""


_UNFINISHED = text(f"WITH RECURSIVE {begun(COLUMNS)} SELECT * FROM begun LIMIT :most")
_BY_IDS = text(f"SELECT {COLUMNS} FROM responses r WHERE r.id = ANY(CAST(:ids AS text[]))")
MAX_IDS = 1_000
"""Rows that one statement finds by their ids."""


async def find_unfinished(db: Database, most: int) -> Sequence[ListedResponse]:
    """Responses that were sent, that run, or that go on later; not those that wait for their first worker.

    Raises StoreUnavailable.
    """
    return [_listed(row) for row in await db.execute(_UNFINISHED, {"most": most})]


async def find(db: Database, ids: Sequence[str]) -> Sequence[ListedResponse]:
    """Returns those of these responses that exist, of whatever project. Raises StoreUnavailable."""
    found: list[ListedResponse] = []
    for start in range(0, len(ids), MAX_IDS):
        found += [_listed(row) for row in await db.execute(_BY_IDS, {"ids": list(ids[start : start + MAX_IDS])})]
    return found


@dataclass(frozen=True, slots=True)
class MatchCount:
    """How many responses match."""

    matching: int
    is_exact: bool
    """False: there are at least so many; MAX_COUNTED rows were read."""


async def count(db: Database, only: ResponseFilter, statuses: Sequence[Status]) -> MatchCount:
    """Counts the responses of these statuses that match."""
    wanted = window(only, statuses, MAX_COUNTED, None, descending=False)
    async with db.begin(large=True) as connection:
        await connection.execute(_BY_INDEX)
        (row,) = (await connection.execute(text(_COUNT.format(window=wanted.text)), wanted.values)).all()
    return MatchCount(row.matching, row.read < MAX_COUNTED)
