"""Endings that no worker writes: cancel, fail and delete.

Each locks the rows first, so that no append is under way or can come later, and then writes the terminal event after
the last committed one. Which statuses may end is in `protocol.status.TRANSITIONS`.

None of them waits in Postgres for a row that another transaction holds. What ends a single response tries again for
two seconds, and holds nothing meanwhile; then it raises StoreLocked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from random import uniform
from typing import TypeVar

from sqlalchemy import text
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
from app.store.columns import to_json
from app.store.database import Database, StoreBusy, StoreLocked, StoreUnavailable
from app.store.guards import MAX_CLAIMS, OVERDUE
from app.store.packing import unpack_events
from app.store.responses import final_rows, queued
from app.store.responses.final_rows import FinalRow
from app.store.rows import WHOLE_ROW, Ending, EndResult, ResponseRow, parsed_row
from config.logging.context import about

log = logging.getLogger("longhaul.store")

MAX_CANCELLED = 32
"""Responses to cancel in one transaction: the next chunks of their workers wait for it."""
MAX_LOG_BYTES = 8 * 1024 * 1024
"""The requests and logs that one transaction of cancels reads; a larger response is alone in its own."""

PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, *[0.3] * 6)
"""Pauses, in seconds, before a row that another transaction holds is asked for again."""

T = TypeVar("T")
Close = Callable[[ResponseStream], list[Event]]
"""Ends a stream; returns its last events."""
Announce = Callable[["EndResult"], None]
"""Is told of each response that was cancelled, once that is committed, whatever becomes of the others."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The rows to end: those with one of the `ids` that meet every condition that is set here."""

    ids: Sequence[str]
    project: str | None = None
    only_kept: bool = False
    """Not those of the foreground that are not stored."""
    status: str | None = None
    worker: str | None = None
    """With `attempt`: they are in progress, and that worker's under that attempt."""
    attempt: int | None = None


_WANTED = """
    r.id = ANY(CAST(:ids AS text[])) AND r.project = coalesce(CAST(:project AS text), r.project)
        AND (r.store OR r.background OR NOT :only_kept) AND r.status = coalesce(CAST(:status AS text), r.status)
        AND (CAST(:worker AS text) IS NULL
            OR r.status = 'in_progress' AND r.worker = :worker AND r.attempt = CAST(:attempt AS int))
"""
_IDS = text(f"SELECT r.id FROM responses r WHERE {_WANTED}")
# The rows are found by their keys alone and locked in the order of their ids, as in logs.py. It passes by those that
# others have locked.
_LOCK = text(f"SELECT {WHOLE_ROW} FROM responses r WHERE {_WANTED} ORDER BY r.id FOR UPDATE OF r SKIP LOCKED")
_LOGS = text(
    """
    SELECT response_id, last, frames FROM chunks WHERE response_id = ANY(CAST(:ids AS text[]))
    ORDER BY response_id, first
    """
)
_SIZES = text(
    """
    SELECT r.id, r.request_bytes + r.output_bytes + r.messages_bytes
        + coalesce((SELECT sum(c.size) FROM chunks c WHERE c.response_id = r.id), 0) AS bytes
    FROM responses r WHERE r.id = ANY(CAST(:ids AS text[]))
    """
)
_ERASE_SECRETS = text("UPDATE responses SET request = :request WHERE id = :id")
_DELETE = text("DELETE FROM responses WHERE id = :id")
_OVERDUE = text(
    f"""
    SELECT r.id, r.status, coalesce(r.due_at < now(), false) AS is_due, {queued.ENDS_AT_ONCE} AS ends_at_once,
        r.request_id
    FROM responses r
    WHERE ({" OR ".join(OVERDUE.values())})
        AND r.id <> ALL(CAST(:but AS text[]))
    LIMIT :limit
    """
)
_EXHAUSTED = text(
    """
    SELECT r.id, r.attempt, r.crashes FROM responses r
    WHERE r.status = 'in_progress' AND r.worker IS NULL AND r.id <> ALL(CAST(:but AS text[]))
        AND (r.crashes >= :max_crashes OR r.attempt - r.yields >= :max_claims AND r.attempt IS DISTINCT FROM (
            SELECT p.attempt FROM progress p WHERE p.response_id = r.id))
    LIMIT :limit
    """
)
_HELD = "another transaction holds the response"
_ENDING_COLUMNS = ("status", "output", "usage", "error", "incomplete_details", "finished_at")
"""What an ending sets. Tool results stay unset: no turn of a model produced them."""


async def _once_free(end: Callable[[], Awaitable[T]]) -> T:
    for seconds in PAUSES:
        try:
            return await end()
        except StoreLocked:
            await asyncio.sleep(uniform(0.5, 1.5) * seconds)
    return await end()


async def cancel(
    db: Database,
    response_id: str,
    project: str | None,
    announce: Announce = lambda _: None,
    *,
    only_kept: bool = False,
) -> EndResult | None:
    """Cancels a response that is not final; the terminal event follows the last committed one.

    Of a response that is final already, the result has no chunk. None: the id is unknown (in that project). Raises
    StoreUnavailable: StoreLocked if another transaction holds the row.
    """

    async def cancel_once() -> EndResult | None:
        (result,) = await cancel_all(db, [response_id], project, announce, only_kept=only_kept)
        if isinstance(result, StoreUnavailable):
            raise result
        return result

    return await _once_free(cancel_once)


async def cancel_all(
    db: Database,
    response_ids: Sequence[str],
    project: str | None,
    announce: Announce = lambda _: None,
    *,
    only_kept: bool = False,
) -> list[EndResult | StoreUnavailable | None]:
    """`cancel` of several, at most MAX_LOG_BYTES of requests and logs in a transaction; results in the same order.

    What `cancel` would raise for one of them is its result. If an id comes twice, only the first result has the chunk.
    With `only_kept`, foreground responses that are not stored count as unknown.
    """
    results: dict[str, EndResult | StoreUnavailable] = {}
    sizes = await sizes_of(db, response_ids)
    away: StoreUnavailable | None = None
    for ids in grouped(sizes, MAX_LOG_BYTES):
        wanted = _Wanted(ids, project, only_kept)
        try:
            if away is not None:
                raise away
            async with _ending(db, sum(sizes[each] for each in ids)) as (connection, threads):
                ended, locked = await _end_rows(connection, threads, wanted, "cancel", ResponseStream.cancel)
        except StoreUnavailable as error:
            away = None if isinstance(error, StoreBusy) else error
            results |= dict.fromkeys(ids, error)
            continue
        results |= dict.fromkeys(locked, StoreLocked(_HELD))
        for response_id, result in ended.items():
            results[response_id] = result = replace(result, size=sizes[response_id])
            if result.chunk is not None:
                announce(result)
    in_order: list[EndResult | StoreUnavailable | None] = []
    for response_id in response_ids:
        found = results.get(response_id)
        in_order.append(found)
        if isinstance(found, EndResult):
            results[response_id] = replace(found, chunk=None)
    return in_order


@asynccontextmanager
async def cancelling(
    db: Database, sizes: Mapping[str, int]
) -> AsyncIterator[tuple[AsyncConnection, Callable[[], Awaitable[list[EndResult]]]]]:
    """A transaction of the caller's, and what cancels these responses in it: those that nobody else has locked.

    `sizes` are their bytes by their ids (`sizes_of`), no more than MAX_CANCELLED and MAX_LOG_BYTES.
    """
    async with _ending(db, sum(sizes.values())) as (connection, threads):

        async def cancel_rows() -> list[EndResult]:
            if not sizes:
                return []
            ended, _ = await _end_rows(connection, threads, _Wanted(list(sizes)), "cancel", ResponseStream.cancel)
            return list(ended.values())

        yield connection, cancel_rows


async def fail(
    db: Database,
    response_id: str,
    code: str,
    message: str,
    *,
    only: Status | None = None,
    owner: tuple[str, int] | None = None,
) -> EndResult | None:
    """Fails a response that is not final, for a worker that cannot do so itself, whatever its log holds.

    With `only` it must still have that status, with `owner` (worker, attempt) still belong to that run. None:
    it is final, its status or owner is another, or the id is unknown. Raises StoreUnavailable.
    """
    error = error_object(code, message)
    worker, attempt = (None, None) if owner is None else owner
    wanted = _Wanted([response_id], status=None if only is None else only.value, worker=worker, attempt=attempt)

    async def end(*, with_log: bool) -> EndResult | None:
        async with _ending(db, size) as (connection, threads):
            closing = (wanted, "fail", lambda stream: stream.fail(error))
            ended, locked = await _end_rows(connection, threads, *closing, with_log=with_log)
        if locked:
            raise StoreLocked(_HELD)
        result = ended.get(response_id)
        return None if result is None or result.chunk is None else result

    size = sum((await sizes_of(db, [response_id])).values())
    try:
        return await _once_free(partial(end, with_log=True))
    except StoreUnavailable:
        raise
    except Exception as cause:
        with about(response_id):
            log.error("the response cannot be failed with its output: %s", type_and_places(cause))
        return await end(with_log=False)


async def delete(db: Database, project: str, response_id: str) -> EndResult | None:
    """Deletes a response and its events; cancels it first if it is not final.

    None: the id is unknown, or it is a foreground response that is not stored. Raises as `cancel`.
    """
    return await _once_free(partial(_delete, db, project, response_id))


async def _delete(db: Database, project: str, response_id: str) -> EndResult | None:
    wanted = _Wanted([response_id], project, only_kept=True)
    size = sum((await sizes_of(db, [response_id])).values())
    async with _ending(db, size) as (connection, threads):
        results, locked = await _end_rows(connection, threads, wanted, "cancel", ResponseStream.cancel)
        if locked:
            raise StoreLocked(_HELD)
        if results:
            await connection.execute(_DELETE, {"id": response_id})
    return results.get(response_id)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A response that is not final and beyond a deadline."""

    id: str
    status: Status
    is_due: bool = False
    """Whether that is the end of its window. Otherwise it has waited, or run, for too long."""
    ends_at_once: bool = False
    """Whether it ends together with others (queued.py)."""
    request_id: str | None = None


async def find_overdue(db: Database, limit: int = 500, but: Collection[str] = ()) -> Sequence[Overdue]:
    """Responses that are beyond a deadline: all `but` these. Lines that miss their window are ended by their batch."""
    rows = await db.execute(_OVERDUE, {"but": list(but), "limit": limit})
    return [Overdue(row.id, Status(row.status), row.is_due, row.ends_at_once, row.request_id) for row in rows]


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
    values = {"max_crashes": max_crashes, "max_claims": max_claims, "but": list(but), "limit": limit}
    return [Exhausted(row.id, row.attempt, row.crashes) for row in await db.execute(_EXHAUSTED, values)]


async def sizes_of(db: Database, response_ids: Sequence[str]) -> dict[str, int]:
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
    wanted: _Wanted,
    transition: str,
    close: Close,
    *,
    with_log: bool = True,
) -> tuple[dict[str, EndResult], set[str]]:
    """Locks the rows, and ends those that `transition` allows to; returns all of them by id, and the ids of those that
    others have locked."""
    found = (await connection.execute(_LOCK, asdict(wanted))).all()
    locked: set[str] = set()
    if len(found) < len(wanted.ids):
        locked = set((await connection.execute(_IDS, asdict(wanted))).scalars()) - {row.id for row in found}

    async def run(work: Callable[[], T]) -> T:
        return work() if threads is None else await threads.run(work)

    rows = await run(lambda: list(map(parsed_row, found)))
    results = {row.id: EndResult(row, None) for row in rows}
    unfinished = [row for row in rows if row.status in TRANSITIONS[transition].sources]
    logs = await _read_logs(connection, [row.id for row in unfinished])

    def end_all() -> list[tuple[ResponseRow, FinalRow]]:
        return [_end_row(row, logs[row.id], close, with_log=with_log) for row in unfinished]

    if endings := await run(end_all):
        await final_rows.write(connection, [final for _, final in endings])
        with_secrets = [row for row in unfinished if row.request_to_keep is not None]
        if kept := [{"id": row.id, "request": to_json(row.request_to_keep)} for row in with_secrets]:
            await connection.execute(_ERASE_SECRETS, kept)
    return results | {row.id: EndResult(row, final.chunk) for row, final in endings}, locked


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


def _end_row(row: ResponseRow, stored: _Log, close: Close, *, with_log: bool) -> tuple[ResponseRow, FinalRow]:
    """The row as it will be, and what ends it: without its output, if its events cannot be read."""
    if with_log:
        try:
            events = (event for encoded in stored.frames for event in frames.decode(unpack_events(encoded)))
            return _ended(row, ResponseStream.restore(events, stored.next_sequence), close)
        except Exception as error:
            with about(row.id, attempt=row.attempt, request_id=row.request_id):
                log.error("the response ends without its output, its log cannot be read: %s", type_and_places(error))
    return _ended(row, ResponseStream.without_log(row.as_object(), stored.next_sequence), close)


def _ended(row: ResponseRow, stream: ResponseStream, close: Close) -> tuple[ResponseRow, FinalRow]:
    first = stream.next_sequence
    encoded = frames.encode_all(close(stream))
    chunk = Chunk(row.id, first, stream.next_sequence - 1, row.attempt, (), encoded, final=True)
    ending = Ending.of(stream.response, row.read_at)
    columns = {name: getattr(ending, name) for name in _ENDING_COLUMNS}
    ended = replace(row, worker=None, request=row.request_to_keep or row.request, **columns)
    return ended, FinalRow(row.id, ending, chunk)
