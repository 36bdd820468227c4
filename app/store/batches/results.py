"""What the lines of a batch came to: rows that a trigger writes when a line's response ends.

They get numbers in the order in which they are seen to end, without gaps, from whoever holds the batch's lock: so
a reader that has seen number N has seen all before it. In the order of lines they go into the batch's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.types import Json
from app.sizes import LARGE_BYTES, grouped
from app.store.batches.rows import COUNTS
from app.store.columns import Column, Columns, named_arrays, to_json
from app.store.database import Database
from app.store.rows import WHOLE_ROW, ResponseRow, parsed_row

PAGE_BYTES = 4 * LARGE_BYTES
"""Responses of one page, unless the first one alone has more."""
PAGE_ROWS = 1000
CANCELLED = "cancelled"
"""The status of a line that was cancelled: its response has nothing to tell."""

NUMBERED_ROWS = 5000
"""Results that one statement numbers."""

# By where the rows are: they stay there while the batch is locked. A join by lines takes the square of their number
# while Postgres has no statistics of a table that has just grown: 9 s for 10,000.
_NUMBER = text(
    f"""
    WITH fresh AS MATERIALIZED (
        SELECT n.at, row_number() OVER (ORDER BY n.line) AS place FROM (
            SELECT ctid AS at, line FROM batch_results WHERE batch_id = :id AND number IS NULL
            ORDER BY line LIMIT {NUMBERED_ROWS}
        ) n
    ), numbered AS (
        UPDATE batch_results r SET number = b.numbered + f.place FROM fresh f, batches b
        WHERE r.ctid = f.at AND b.id = :id
        RETURNING r.*
    ), added AS (SELECT count(*) AS numbered, {COUNTS} FROM numbered r JOIN batches b ON b.id = r.batch_id)
    UPDATE batches b SET numbered = b.numbered + a.numbered, completed = b.completed + a.completed,
        failed = b.failed + a.failed, input_tokens = b.input_tokens + a.input_tokens,
        cached_tokens = b.cached_tokens + a.cached_tokens, output_tokens = b.output_tokens + a.output_tokens,
        reasoning_tokens = b.reasoning_tokens + a.reasoning_tokens
    FROM added a WHERE b.id = :id AND a.numbered > 0
    RETURNING a.numbered
    """
)


class Order(Enum):
    """The order in which results are read."""

    NUMBER = "number"
    """Order in which lines were seen to end."""
    LINE = "line"
    """Order of the input file."""


_SIZES = {
    order: text(
        f"""
        SELECT n.place, coalesce(r.request_bytes + r.output_bytes + r.messages_bytes, 0) AS bytes FROM (
            SELECT {order.value} AS place, response_id, status FROM batch_results
            WHERE batch_id = :id AND {order.value} > :after ORDER BY {order.value} LIMIT :limit
        ) n LEFT JOIN responses r ON r.id = n.response_id AND n.status <> '{CANCELLED}' ORDER BY n.place
        """
    )
    for order in Order
}
_ROWS = {
    order: text(
        f"""
        SELECT b.batch_id AS result_batch, b.line AS result_line, b.number AS result_number, b.response_id AS result_of,
            b.custom_id AS result_custom_id, b.status AS result_status, b.error AS result_error, {WHOLE_ROW}
        FROM batch_results b LEFT JOIN responses r ON r.id = b.response_id AND b.status <> '{CANCELLED}'
        WHERE b.batch_id = :batch AND b.{order.value} BETWEEN :first AND :last ORDER BY b.{order.value}
        """
    )
    for order in Order
}


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The outcome of a line."""

    batch_id: str
    line: int
    number: int | None
    custom_id: str
    status: str
    """Status of its response. CANCELLED too if it missed its window; `failed` or CANCELLED if it became none."""
    response_id: str | None
    """The id of the line's response; None: the line never became one."""
    response: ResponseRow | None
    """None: there is none any more, or it was cancelled."""
    error: Json | None
    """Why the line never became a response."""


async def number_results(connection: AsyncConnection, batch_id: str) -> int:
    """Numbers the next results that have none, NUMBERED_ROWS at most, and adds them to the batch's counts; returns how
    many.

    The caller has locked the batch.
    """
    return (await connection.execute(_NUMBER, {"id": batch_id})).scalar_one_or_none() or 0


async def read_results(db: Database, batch_id: str, after: int, order: Order) -> list[ResultRow]:
    """A page of the results whose line or number, as `order` says, is larger than `after`; none: there are no more."""
    found = await db.execute(_SIZES[order], {"id": batch_id, "after": after, "limit": PAGE_ROWS})
    if not found:
        return []
    sizes = {row.place: row.bytes for row in found}
    first = next(iter(grouped(sizes, PAGE_BYTES)))
    values = {"batch": batch_id, "first": first[0], "last": first[-1]}
    async with db.large_read(None) as threads:
        rows = await db.execute(_ROWS[order], values, large=True)
        return await threads.run(lambda: list(map(_result, rows)))


def _result(row: Row[Any]) -> ResultRow:
    response = None if row.id is None else parsed_row(row)
    place = row.result_batch, row.result_line, row.result_number, row.result_custom_id
    return ResultRow(*place, row.result_status, row.result_of, response, row.result_error)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that never became a response."""

    line: int
    custom_id: str
    status: str
    """`failed` or `cancelled`."""
    error: Json


_SKIPPED: Columns[Skipped] = Columns(
    Column("line", "int"), Column("custom_id", "text"), Column("status", "text"), Column("error", "json", to_json)
)
_SKIP = text(
    f"""
    INSERT INTO batch_results (batch_id, {_SKIPPED.names})
    SELECT :id, {_SKIPPED.select("s")} FROM unnest({named_arrays(_SKIPPED)}) AS s({_SKIPPED.names})
    """
)


async def skip(connection: AsyncConnection, batch_id: str, lines: Sequence[Skipped]) -> None:
    """Notes that lines never become responses. The caller has locked the batch."""
    await connection.execute(_SKIP, {"id": batch_id, **_SKIPPED.named_parameters(lines)})


_UNANSWERED = text(
    """
    SELECT array_agg(coalesce(l.place, r.line) ORDER BY r.line) AS places
    FROM batch_results r LEFT JOIN (
        SELECT t.place, t.line FROM batches b CROSS JOIN unnest(b.lines) WITH ORDINALITY AS t(place, line)
        WHERE b.id = :id
    ) l ON l.line = r.line
    WHERE r.batch_id = :id AND r.status NOT IN ('completed', 'incomplete')
    """
)


async def unanswered(db: Database, batch_id: str) -> Sequence[int]:
    """The places in the batch's file of the lines that have ended without an answer."""
    found = await db.execute(_UNANSWERED, {"id": batch_id})
    return found[0].places or ()
