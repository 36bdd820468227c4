"""Endings that no worker writes: cancel, fail and delete.

Each locks the rows first, so that no append is under way or can come later, and then writes the terminal event after
the last committed one. Which statuses may end is in `protocol.status.TRANSITIONS`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Boolean, ColumnElement, Row, Select, Text, any_, bindparam, func, or_, select, text, update
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.heavy import Threads
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.frames import Event
from app.protocol.events.machine import ResponseStream
from app.protocol.response import error_object
from app.protocol.status import TRANSITIONS, Status
from app.protocol.text import type_and_places
from app.sizes import grouped, is_large
from app.store.columns import Columns, named_arrays
from app.store.database import Database, StoreUnavailable
from app.store.guards import IS_IN_PROGRESS, IS_QUEUED, MAX_CLAIMS, has_crashed_out
from app.store.packing import unpack_events
from app.store.responses.lookup import ROW_BYTES, UNPARSED_COLUMNS
from app.store.rows import CHUNK_COLUMNS, Ending, EndResult, ResponseRow, parsed_row
from app.store.tables import LOG_BYTES, chunks, responses

log = logging.getLogger("longhaul.store")

MAX_CANCELLED = 32
"""Responses to cancel in one transaction: the next chunks of their workers wait for it."""
MAX_LOG_BYTES = 8 * 1024 * 1024
"""The requests and logs that one transaction of cancels reads; a larger response is alone in its own."""

T = TypeVar("T")
Close = Callable[[ResponseStream], list[Event]]
"""Ends a stream; returns its last events."""


def _lock(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Rows are found by their keys alone and locked in the order of their ids, as in logs.py."""
    return select(*UNPARSED_COLUMNS).where(*conditions).order_by(responses.c.id).with_for_update()


_BY_IDS = responses.c.id == any_(bindparam("ids", type_=ARRAY(Text)))
_STATUSES = select(responses.c.id, responses.c.status).where(_BY_IDS)
_IS_ID = responses.c.id == bindparam("id")
_LOCK_BY_IDS = _lock(
    _BY_IDS,
    responses.c.project == func.coalesce(bindparam("project", type_=Text), responses.c.project),
    responses.c.background >= bindparam("only_background", type_=Boolean),
)
_LOCK_TO_DELETE = _lock(_IS_ID, responses.c.project == bindparam("project"), responses.c.store | responses.c.background)
_LOCK_IN_STATUS = _lock(_IS_ID, responses.c.status == func.coalesce(bindparam("only", type_=Text), responses.c.status))
_LOCK_OWNED = _lock(
    _IS_ID,
    IS_IN_PROGRESS,
    responses.c.worker == bindparam("worker"),
    responses.c.attempt == bindparam("attempt"),
)
_LOGS = (
    select(chunks.c.response_id, chunks.c.last, chunks.c.frames)
    .where(chunks.c.response_id == any_(bindparam("ids", type_=ARRAY(Text))))
    .order_by(chunks.c.response_id, chunks.c.first)
)
_LOG_BYTES = select(func.sum(chunks.c.size)).where(chunks.c.response_id == responses.c.id)
_SIZES = select(responses.c.id, (ROW_BYTES + func.coalesce(_LOG_BYTES.scalar_subquery(), 0)).label("bytes")).where(
    _BY_IDS
)
_CHUNK: Columns[Chunk] = Columns(*CHUNK_COLUMNS)
_INSERT_CHUNKS = text(
    f"""
    INSERT INTO chunks ({_CHUNK.names})
    SELECT {_CHUNK.select("b")} FROM unnest({named_arrays(_CHUNK)}) AS b({_CHUNK.names})
    """
)
_UPDATE_ENDED = update(responses).where(responses.c.id == bindparam("ended_id")).values(log_bytes=text(LOG_BYTES))
_ERASE_SECRETS = update(responses).where(responses.c.id == bindparam("ended_id")).values(request=bindparam("kept"))
_ENDING_COLUMNS = ("status", "output", "usage", "error", "incomplete_details", "finished_at")
"""The columns that an ending sets. Tool results stay unset: no turn of a model produced them."""


async def cancellable(db: Database, response_ids: Sequence[str]) -> list[str]:
    """The ids of the responses that `cancel` would end now."""
    found = await db.execute(_STATUSES, {"ids": response_ids})
    return [row.id for row in found if Status(row.status) in TRANSITIONS["cancel"].sources]


async def cancel(db: Database, response_id: str, project: str | None) -> EndResult | None:
    """Cancels a response that is not final; the terminal event follows the last committed one.

    Of a response that is final already, the result has no chunk. None: the id is unknown (in that project).
    """
    return (await cancel_all(db, [response_id], project))[0]


async def cancel_all(
    db: Database, response_ids: Sequence[str], project: str | None, *, only_background: bool = False
) -> list[EndResult | None]:
    """`cancel` of several, at most MAX_LOG_BYTES of requests and logs in a transaction; results in the same order.

    If an id comes twice, only the first result has the chunk. With `only_background`, foreground responses count as
    unknown.
    """
    results: dict[str, EndResult] = {}
    sizes = await _sizes(db, response_ids)
    for ids in grouped(sizes, MAX_LOG_BYTES):
        wanted = {"ids": ids, "project": project, "only_background": only_background}
        async with _ending(db, sum(sizes[each] for each in ids)) as (connection, threads):
            ended = await _end_rows(connection, threads, _LOCK_BY_IDS, wanted, "cancel", ResponseStream.cancel)
        results |= {each: replace(result, size=sizes[each]) for each, result in ended.items()}
    in_order: list[EndResult | None] = []
    for response_id in response_ids:
        result = results.get(response_id)
        in_order.append(result)
        if result is not None:
            results[response_id] = replace(result, chunk=None)
    return in_order


async def fail(
    db: Database,
    response_id: str,
    code: str,
    message: str,
    *,
    only: Status | None = None,
    owner: tuple[str, int] | None = None,
) -> Chunk | None:
    """Fails a response that is not final, for a worker that cannot do so itself, whatever its log holds.

    With `only` it must still have that status, with `owner` (worker, attempt) still belong to that run. Returns its
    terminal chunk; None: it is final, its status or owner is another, or the id is unknown. Raises StoreUnavailable.
    """
    error = error_object(code, message)
    lock = _LOCK_IN_STATUS
    wanted: dict[str, Any] = {"id": response_id, "only": None if only is None else only.value}
    if owner is not None:
        lock, wanted = _LOCK_OWNED, {"id": response_id, "worker": owner[0], "attempt": owner[1]}

    async def end(*, with_log: bool) -> Chunk | None:
        async with _ending(db, size) as (connection, threads):
            closing = (lock, wanted, "fail", lambda stream: stream.fail(error))
            result = (await _end_rows(connection, threads, *closing, with_log=with_log)).get(response_id)
        return None if result is None else result.chunk

    size = sum((await _sizes(db, [response_id])).values())
    try:
        return await end(with_log=True)
    except StoreUnavailable:
        raise
    except Exception as cause:
        log.error("%s cannot be failed with its output: %s", response_id, type_and_places(cause))
        return await end(with_log=False)


async def delete(db: Database, project: str, response_id: str) -> EndResult | None:
    """Deletes a response and its events; cancels it first if it is not final.

    None: the id is unknown, or it is a foreground response that is not stored.
    """
    wanted = {"id": response_id, "project": project}
    size = sum((await _sizes(db, [response_id])).values())
    async with _ending(db, size) as (connection, threads):
        results = await _end_rows(connection, threads, _LOCK_TO_DELETE, wanted, "cancel", ResponseStream.cancel)
        if results:
            await connection.execute(delete_from(responses).where(responses.c.id == response_id))
    return results.get(response_id)


async def find_overdue(db: Database, limit: int = 500, but: Collection[str] = ()) -> Sequence[tuple[str, Status]]:
    """Responses that have waited, or run, beyond their deadline, each with its status: all `but` these."""
    waited = IS_QUEUED & (responses.c.queue_deadline < func.now())
    ran = IS_IN_PROGRESS & (responses.c.run_deadline < func.now())
    found = select(responses.c.id, responses.c.status).where(or_(waited, ran), responses.c.id.not_in(but))
    rows = await db.execute(found.limit(limit))
    return [(row.id, Status(row.status)) for row in rows]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A response without a worker that no worker may claim any more."""

    id: str
    attempts: int
    crashes: int


async def find_exhausted(
    db: Database, max_crashes: int, max_claims: int = MAX_CLAIMS, limit: int = 500, but: Collection[str] = ()
) -> Sequence[Exhausted]:
    """Responses without a worker that were claimed, or have crashed, too often: all `but` these."""
    columns = (responses.c.id, responses.c.attempt, responses.c.crashes)
    spent = (responses.c.attempt - responses.c.yields >= max_claims) | has_crashed_out(responses.c.crashes, max_crashes)
    found = select(*columns).where(IS_IN_PROGRESS, responses.c.worker.is_(None), spent, responses.c.id.not_in(but))
    return [Exhausted(row.id, row.attempt, row.crashes) for row in await db.execute(found.limit(limit))]


async def _sizes(db: Database, response_ids: Sequence[str]) -> dict[str, int]:
    """The bytes of each response's row and log, in the order of the ids, without repeats; 0 of an unknown one."""
    sizes = {row.id: int(row.bytes) for row in await db.execute(_SIZES, {"ids": response_ids})}
    return {response_id: sizes.get(response_id, 0) for response_id in response_ids}


@asynccontextmanager
async def _ending(db: Database, size: int) -> AsyncIterator[tuple[AsyncConnection, Threads | None]]:
    """A transaction that ends rows of `size` bytes, and threads for them if they are large.

    The threads are free before the transaction begins: a worker's chunks wait for the rows that it locks.
    """
    async with AsyncExitStack() as turn:
        threads = await turn.enter_async_context(db.large_read(None)) if is_large(size) else None
        yield await turn.enter_async_context(db.begin(large=threads is not None)), threads


async def _end_rows(
    connection: AsyncConnection,
    threads: Threads | None,
    lock: Select[Any],
    wanted: Mapping[str, Any],
    transition: str,
    close: Close,
    *,
    with_log: bool = True,
) -> dict[str, EndResult]:
    """Locks the rows that `lock` selects, and ends those that `transition` allows to; returns all of them by id."""
    found = (await connection.execute(lock, wanted)).all()

    async def run(work: Callable[[], T]) -> T:
        return work() if threads is None else await threads.run(work)

    rows = await run(partial(_parsed, found))
    results = {row.id: EndResult(row, None) for row in rows}
    unfinished = [row for row in rows if row.status in TRANSITIONS[transition].sources]
    logs = await _read_logs(connection, [row.id for row in unfinished])

    def end_all() -> list[tuple[ResponseRow, Chunk]]:
        return [_end_row(row, logs[row.id], close, with_log=with_log) for row in unfinished]

    if endings := await run(end_all):
        await connection.execute(_INSERT_CHUNKS, _CHUNK.named_parameters([chunk for _, chunk in endings]))
        await connection.execute(_UPDATE_ENDED, [_row_columns(row) for row, _ in endings])
        with_secrets = [row for row in unfinished if row.request_to_keep is not None]
        if kept := [{"ended_id": row.id, "kept": row.request_to_keep} for row in with_secrets]:
            await connection.execute(_ERASE_SECRETS, kept)
    return results | {row.id: EndResult(row, chunk) for row, chunk in endings}


def _parsed(rows: Sequence[Row[Any]]) -> list[ResponseRow]:
    return [parsed_row(row) for row in rows]


@dataclass(slots=True)
class _Log:
    """The committed events of a response, as they are stored."""

    frames: list[bytes] = field(default_factory=list)
    next_sequence: int = 0


async def _read_logs(connection: AsyncConnection, response_ids: Sequence[str]) -> dict[str, _Log]:
    logs = {response_id: _Log() for response_id in response_ids}
    for response_id, last, encoded in await connection.execute(_LOGS, {"ids": response_ids}):
        logs[response_id].frames.append(encoded)
        logs[response_id].next_sequence = last + 1
    return logs


def _end_row(row: ResponseRow, stored: _Log, close: Close, *, with_log: bool) -> tuple[ResponseRow, Chunk]:
    """The row as it will be, and the chunk that ends it: without its output, if its events cannot be read."""
    if with_log:
        try:
            events = (event for encoded in stored.frames for event in frames.decode(unpack_events(encoded)))
            return _ended(row, ResponseStream.restore(events, stored.next_sequence), close)
        except Exception as error:
            log.error("%s ends without its output, its log cannot be read: %s", row.id, type_and_places(error))
    return _ended(row, ResponseStream.without_log(row.as_object(), stored.next_sequence), close)


def _ended(row: ResponseRow, stream: ResponseStream, close: Close) -> tuple[ResponseRow, Chunk]:
    chunk = closing_chunk(row, stream, close)
    ending = Ending.of(stream.response, row.read_at)
    columns = {name: getattr(ending, name) for name in _ENDING_COLUMNS}
    return replace(row, worker=None, request=row.request_to_keep or row.request, **columns), chunk


def closing_chunk(row: ResponseRow, stream: ResponseStream, close: Close) -> Chunk:
    """The last chunk of a response that `close` ends."""
    first = stream.next_sequence
    encoded = frames.encode_all(close(stream))
    return Chunk(row.id, first, stream.next_sequence - 1, row.attempt, (), encoded, final=True)


def _row_columns(row: ResponseRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in _ENDING_COLUMNS}
    return {**values, "status": row.status.value, "worker": None, "ended_id": row.id}
