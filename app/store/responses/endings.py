"""Endings that no worker writes: cancel, fail and delete.

Each locks the rows first, so that no append is under way or can come later, and then writes the terminal event after
the last committed one. Which statuses may end is in `protocol.status.TRANSITIONS`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy import Boolean, Row, Select, Text, any_, bindparam, func, or_, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.aio import HEAVY
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.frames import Event
from app.protocol.events.machine import ResponseStream
from app.protocol.response import error_object
from app.protocol.status import TRANSITIONS, Status
from app.protocol.text import type_and_places
from app.sizes import is_large
from app.store.database import Database, StoreUnavailable
from app.store.guards import MAX_CLAIMS, has_crashed_out, may
from app.store.responses.lookup import UNPARSED_COLUMNS
from app.store.rows import Ending, EndResult, ResponseRow, pack_tokens, parsed_row
from app.store.tables import chunks, responses

log = logging.getLogger("longhaul.store")

MAX_CANCELLED = 32
"""Responses to cancel in one transaction: the next chunks of their workers wait for it."""
MAX_LOG_BYTES = 8 * 1024 * 1024
"""The requests and logs that one transaction of cancels reads; a larger response is alone in its own."""

Close = Callable[[ResponseStream], list[Event]]
"""Ends a stream; returns its last events."""

# Rows are found by their keys alone and locked in the order of their ids, as in logs.py.
_BY_IDS = responses.c.id == any_(bindparam("ids", type_=ARRAY(Text)))
_STATUSES = select(responses.c.id, responses.c.status).where(_BY_IDS)
_LOCK_BY_IDS = (
    select(*UNPARSED_COLUMNS)
    .where(_BY_IDS, responses.c.project == func.coalesce(bindparam("project", type_=Text), responses.c.project))
    .where(responses.c.background >= bindparam("only_background", type_=Boolean))
    .order_by(responses.c.id)
    .with_for_update()
)
_LOCK_TO_DELETE = (
    select(*UNPARSED_COLUMNS)
    .where(responses.c.id == bindparam("id"), responses.c.project == bindparam("project"))
    .where(responses.c.store | responses.c.background)
    .with_for_update()
)
_LOCK_IN_STATUS = (
    select(*UNPARSED_COLUMNS)
    .where(responses.c.id == bindparam("id"))
    .where(responses.c.status == func.coalesce(bindparam("only", type_=Text), responses.c.status))
    .with_for_update()
)
_LOCK_OWNED = (
    select(*UNPARSED_COLUMNS)
    .where(responses.c.id == bindparam("id"), responses.c.status == Status.IN_PROGRESS.value)
    .where(responses.c.worker == bindparam("worker"), responses.c.attempt == bindparam("attempt"))
    .with_for_update()
)
_LOGS = (
    select(chunks.c.response_id, chunks.c.last, chunks.c.frames)
    .where(chunks.c.response_id == any_(bindparam("ids", type_=ARRAY(Text))))
    .order_by(chunks.c.response_id, chunks.c.first)
)
_LOG_BYTES = select(func.sum(func.octet_length(chunks.c.frames))).where(chunks.c.response_id == responses.c.id)
_SIZES = select(
    responses.c.id,
    (responses.c.request_bytes + func.coalesce(_LOG_BYTES.scalar_subquery(), 0)).label("bytes"),
).where(_BY_IDS)
_INSERT_CHUNKS = insert(chunks)
_UPDATE_ENDED = update(responses).where(responses.c.id == bindparam("ended_id"))
_ERASE_SECRETS = update(responses).where(responses.c.id == bindparam("ended_id")).values(request=bindparam("kept"))
_ENDING_COLUMNS = ("status", "output", "usage", "error", "incomplete_details", "finished_at")
"""The columns that an ending sets. Tool results stay unset: no turn of a model produced them."""


async def cancellable(db: Database, response_ids: Sequence[str]) -> list[str]:
    """The ids of the responses that `cancel` would end now."""
    async with db.autocommit() as connection:
        found = (await connection.execute(_STATUSES, {"ids": response_ids})).all()
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
    for ids in await _groups(db, response_ids):
        wanted = {"ids": ids, "project": project, "only_background": only_background}
        async with db.begin() as connection:
            results |= await _end_rows(connection, _LOCK_BY_IDS, wanted, "cancel", ResponseStream.cancel)
    in_order: list[EndResult | None] = []
    for response_id in response_ids:
        result = results.get(response_id)
        in_order.append(result)
        if result is not None:
            results[response_id] = EndResult(result.row, None)
    return in_order


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

    With `only` it must still have that status, with `owner` (worker, attempt) still belong to that run. None: it has
    not, or the id is unknown. Raises StoreUnavailable.
    """
    error = error_object(code, message)
    lock = _LOCK_IN_STATUS
    wanted: dict[str, Any] = {"id": response_id, "only": None if only is None else only.value}
    if owner is not None:
        lock, wanted = _LOCK_OWNED, {"id": response_id, "worker": owner[0], "attempt": owner[1]}

    async def end(*, with_log: bool) -> EndResult | None:
        async with db.begin() as connection:
            closing = (lock, wanted, "fail", lambda stream: stream.fail(error))
            return (await _end_rows(connection, *closing, with_log=with_log)).get(response_id)

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
    async with db.begin() as connection:
        results = await _end_rows(connection, _LOCK_TO_DELETE, wanted, "cancel", ResponseStream.cancel)
        if results:
            await connection.execute(delete_from(responses).where(responses.c.id == response_id))
    return results.get(response_id)


async def find_overdue(db: Database, limit: int = 500) -> Sequence[tuple[str, Status]]:
    """Responses that have waited, or run, beyond their deadline, each with its status."""
    waited = (responses.c.status == Status.QUEUED.value) & (responses.c.queue_deadline < func.now())
    ran = (responses.c.status == Status.IN_PROGRESS.value) & (responses.c.run_deadline < func.now())
    async with db.autocommit() as connection:
        rows = await connection.execute(select(responses.c.id, responses.c.status).where(or_(waited, ran)).limit(limit))
        return [(row.id, Status(row.status)) for row in rows]


async def find_exhausted(
    db: Database, max_crashes: int, max_claims: int = MAX_CLAIMS, limit: int = 500
) -> Sequence[str]:
    """Responses without a worker that no worker may claim any more: claimed, or crashed, too often."""
    spent = (responses.c.attempt >= max_claims) | has_crashed_out(responses.c.crashes, max_crashes)
    found = select(responses.c.id).where(may("take_over"), responses.c.worker.is_(None), spent).limit(limit)
    async with db.autocommit() as connection:
        return list((await connection.execute(found)).scalars())


async def _groups(db: Database, response_ids: Sequence[str]) -> list[list[str]]:
    """The ids without repeats, in groups whose requests and logs have at most MAX_LOG_BYTES together."""
    async with db.autocommit() as connection:
        sizes = {row.id: int(row.bytes) for row in await connection.execute(_SIZES, {"ids": response_ids})}
    groups: list[list[str]] = [[]]
    total = 0
    for response_id in dict.fromkeys(response_ids):
        total += sizes.get(response_id, 0)
        if groups[-1] and total > MAX_LOG_BYTES:
            groups.append([])
            total = sizes.get(response_id, 0)
        groups[-1].append(response_id)
    return groups


async def _end_rows(
    connection: AsyncConnection,
    lock: Select[Any],
    wanted: Mapping[str, Any],
    transition: str,
    close: Close,
    *,
    with_log: bool = True,
) -> dict[str, EndResult]:
    """Locks the rows that `lock` selects, and ends those that `transition` allows to; returns all of them by id."""
    found = (await connection.execute(lock, wanted)).all()
    size = sum(len(row.request) + len(row.output or "") for row in found)
    parse = partial(_parsed, found)
    rows = await HEAVY.run(parse) if is_large(size) else parse()
    results = {row.id: EndResult(row, None) for row in rows}
    unfinished = [row for row in rows if row.status in TRANSITIONS[transition].sources]
    logs = await _read_logs(connection, [row.id for row in unfinished])

    def end_all() -> list[tuple[ResponseRow, Chunk]]:
        return [_end_row(row, logs[row.id], close, with_log=with_log) for row in unfinished]

    size = sum(len(encoded) for each in logs.values() for encoded in each.frames)
    if endings := await HEAVY.run(end_all) if is_large(size) else end_all():
        await connection.execute(_INSERT_CHUNKS, [_chunk_columns(chunk) for _, chunk in endings])
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
            events = (event for encoded in stored.frames for event in frames.decode(encoded))
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


def _chunk_columns(chunk: Chunk) -> dict[str, Any]:
    return {
        "response_id": chunk.response_id,
        "first": chunk.first,
        "last": chunk.last,
        "attempt": chunk.attempt,
        "final": chunk.final,
        "tokens": pack_tokens(chunk.tokens),
        "frames": chunk.frames,
    }
