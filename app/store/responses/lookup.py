"""Reading the rows of responses. Functions for the API are scoped by project.

docs/internals/writes.md has every statement that writes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    Select,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    select,
)

from app.protocol.status import Status
from app.protocol.types import Json
from app.sizes import LARGE_BYTES
from app.store.database import Database
from app.store.rows import LARGE_COLUMNS, LargeRow, ResponseFlags, ResponseRow, parsed_row, row_or_large
from app.store.tables import responses

T = TypeVar("T")

Hold = Callable[[int], Awaitable[None]]
"""Waits for room for so many bytes: `Holding.wait` of a bound."""

_READ_AT = func.now().label("read_at")
RESPONSE_COLUMNS = [_READ_AT if name == "read_at" else responses.c[name] for name in ResponseRow.__slots__]
IS_SMALL = f"(r.messages IS NULL AND r.request_bytes + r.output_bytes <= {LARGE_BYTES})"
"""Whether the row `r` is small. One with `messages` counts as large: it is rare, and they repeat its context."""
_IS_SMALL: ColumnElement[bool] = literal_column(IS_SMALL.replace("r.", "responses."), Boolean)
SMALL_COLUMNS = [
    case((_IS_SMALL, column)).label(column.name) if column.name in LARGE_COLUMNS else column
    for column in RESPONSE_COLUMNS
]
"""Without what is large; then there is no request either (`row_or_large`)."""
ROW_BYTES = responses.c.request_bytes + responses.c.output_bytes + responses.c.messages_bytes
"""What a row holds of what may be large."""
_LARGE_BYTES = case((~_IS_SMALL, ROW_BYTES)).label("large_bytes")
"""What is left out of SMALL_COLUMNS, if anything."""
UNPARSED_COLUMNS = [
    cast(column, Text).label(column.name) if column.name in LARGE_COLUMNS else column for column in RESPONSE_COLUMNS
]
"""For `parsed_row`."""


@dataclass(frozen=True, slots=True)
class _Query:
    """Finds one row."""

    small: Select[Any]
    large: Select[Any]

    @classmethod
    def where(cls, *conditions: ColumnElement[bool]) -> _Query:
        # Built once, because they come often: SQLAlchemy takes 0.1 ms of CPU to build one.
        small = select(*SMALL_COLUMNS, _LARGE_BYTES).where(*conditions)
        return cls(small, select(*UNPARSED_COLUMNS).where(*conditions))


_IS_ID = responses.c.id == bindparam("id")
_IS_PROJECT = responses.c.project == bindparam("project")
_BY_ID = _Query.where(_IS_ID)
_OF_PROJECT = _Query.where(_IS_ID, _IS_PROJECT)
_FLAGS = select(*(_READ_AT if name == "read_at" else responses.c[name] for name in ResponseFlags.__slots__))
_FLAGS_OF_PROJECT = _FLAGS.where(_IS_ID, _IS_PROJECT)
_FLAGS_BY_KEY = _FLAGS.where(_IS_PROJECT, responses.c.idempotency_key == bindparam("key"))

_ASKED = func.unnest(bindparam("ids", type_=ARRAY(Text))).table_valued("id").render_derived("asked")
_SMALL_SO_FAR = func.sum(case((_IS_SMALL, ROW_BYTES), else_=0)).over(order_by=responses.c.id)
_FITS = _IS_SMALL & (_SMALL_SO_FAR <= LARGE_BYTES)
_ENDED = (
    select(
        _ASKED.c.id,
        *(
            case((_FITS, column)).label(column.name) if column.name in LARGE_COLUMNS else column
            for column in RESPONSE_COLUMNS
            if column.name != "id"
        ),
    )
    .select_from(_ASKED.outerjoin(responses, responses.c.id == _ASKED.c.id))
    .where(responses.c.id.is_(None) | responses.c.finished_at.is_not(None))
)
"""Those that have ended or are gone. What is read of them together is small, too."""
_STATUS = select(responses.c.status, responses.c.error).where(_IS_ID)


async def get_flags(db: Database, project: str, response_id: str) -> ResponseFlags | None:
    """Of the response; None: the project has none with that id."""
    rows = await db.execute(_FLAGS_OF_PROJECT, {"id": response_id, "project": project})
    return ResponseFlags(**rows[0]._mapping) if rows else None


async def show(db: Database, project: str, response_id: str, make: Callable[[ResponseRow], T], hold: Hold) -> T | None:
    """What `make` makes of the response, or None if the project has none with that id. Raises what `make` raises.

    Before a large response is read, `hold` is awaited with its bytes. `make` runs in the thread that reads it, so
    that its objects are gone before the next one is read.
    """
    return await _one(db, _OF_PROJECT, make, hold, id=response_id, project=project)


async def get_by_key(db: Database, project: str, key: str) -> ResponseFlags | None:
    """Of the response of the project's request with this Idempotency-Key, or None."""
    rows = await db.execute(_FLAGS_BY_KEY, {"key": key, "project": project})
    return ResponseFlags(**rows[0]._mapping) if rows else None


async def find(db: Database, response_id: str) -> ResponseRow | None:
    """The response, for workers and maintenance, which serve every project."""
    return await _one(db, _BY_ID, lambda row: row, id=response_id)


async def find_status(db: Database, response_id: str) -> tuple[Status, Json | None] | None:
    """Status and error of the response, of whatever project; None: there is none with that id."""
    rows = await db.execute(_STATUS, {"id": response_id})
    return (Status(rows[0].status), rows[0].error) if rows else None


async def find_ended(db: Database, response_ids: Sequence[str]) -> list[ResponseRow | LargeRow | None]:
    """The rows of those that have ended; None: it has not. A LargeRow has to be read by itself, or is gone."""
    ended = {row.id: row_or_large(row) for row in await db.execute(_ENDED, {"ids": list(response_ids)})}
    return [ended.get(response_id) for response_id in response_ids]


async def _one(
    db: Database, query: _Query, make: Callable[[ResponseRow], T], hold: Hold | None = None, **values: str
) -> T | None:
    if not (rows := await db.execute(query.small, values)):
        return None
    if not isinstance(found := row_or_large(rows[0]), LargeRow):
        return make(found)
    if hold is not None:
        await hold(rows[0].large_bytes)
    async with db.large_read(rows[0].project) as threads:
        rows = await db.execute(query.large, values, large=True)
        return await threads.run(lambda: make(parsed_row(rows[0]))) if rows else None
