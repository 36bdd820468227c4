"""The rows of responses: every transition is here, a guarded UPDATE or one of rows that were locked and looked at.

(New rows are `intake`'s. The worker's own endings travel with the last chunk: `journal.append`.) Guards are built from
`protocol.status.TRANSITIONS`. Functions for the API are scoped by project; a worker's name the attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Boolean, Select, Text, any_, bindparam, func, or_, select, update
from sqlalchemy import delete as delete_from
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.frames import Event
from app.protocol.events.machine import ResponseStream
from app.protocol.response import error_object
from app.protocol.status import TRANSITIONS, Status
from app.store.database import Database
from app.store.guards import may, sources
from app.store.rows import Ending, EndResult, ResponseRow, pack_tokens, response_row, row_of
from app.store.tables import chunks, responses

MOST_CANCELLED = 32
"""For one transaction: their workers' next events wait for it."""
_COLUMNS = [responses.c[name] for name in ResponseRow.__slots__]


async def get(db: Database, project: str, response_id: str) -> ResponseRow | None:
    """The response, or None where this project has none of that id."""
    return await _one(db, _OF_PROJECT, id=response_id, project=project)


async def get_by_key(db: Database, project: str, key: str) -> ResponseRow | None:
    """The response of the project's request with this Idempotency-Key, or None."""
    return await _one(db, _BY_KEY, key=key, project=project)


async def find(db: Database, response_id: str) -> ResponseRow | None:
    """`get` for workers and maintenance, who serve every project."""
    return await _one(db, _BY_ID, id=response_id)


async def _one(db: Database, statement: Select[Any], **values: str) -> ResponseRow | None:
    async with db.autocommit() as connection:
        row = (await connection.execute(statement, values)).one_or_none()
    return None if row is None else response_row(row)


# Made once, for what comes often: SQLAlchemy takes 0.1 ms of CPU to put one together.
_BY_ID = select(*_COLUMNS).where(responses.c.id == bindparam("id"))
_OF_PROJECT = _BY_ID.where(responses.c.project == bindparam("project"))
_BY_KEY = select(*_COLUMNS).where(
    responses.c.project == bindparam("project"), responses.c.idempotency_key == bindparam("key")
)


# -- a worker's transitions --------------------------------------------------------------------------------


async def claim_all(db: Database, wanted: Sequence[tuple[str, str]]) -> list[ResponseRow | None]:
    """Makes each `worker` of these (id, worker) its owner under a new attempt; the rows, in the same order.

    Claimed is what is queued, or in progress and nobody's. None: somebody else has it, or it is final, or gone: the
    message was a duplicate or came too late. One that is wanted twice goes to who comes first. Committed together.
    Raises StoreUnavailable: then all of them may have been claimed, or none.
    """
    workers: dict[str, str] = {}
    for response_id, worker in wanted:
        workers.setdefault(response_id, worker)
    async with db.direct("claim") as connection:
        records = await connection.fetch(_CLAIM, list(workers), list(workers.values()))
    rows = {row.id: row for row in map(row_of, records)}
    return [rows.pop(response_id, None) for response_id, _ in wanted]


# As in journal.py: for the driver itself, locked in the order of all that locks several, found by their key alone.
# What may be claimed is asked of the locked rows: those of the statement's own snapshot may be older.
#
# Nobody waits for the disk: whatever the claim leads to is a commit behind it in the same log, which takes it along.
# Lost with Postgres before that, it was never made: its worker is refused at its first chunk, and maintenance sends the
# response again.
_CLAIM = f"""
    WITH batch AS (
        SELECT * FROM unnest($1::text[], $2::text[]) AS b(id, claimant)
    ), locked AS MATERIALIZED (
        SELECT r.id, r.status, r.worker, r.queue_deadline, b.claimant FROM responses r JOIN batch b ON b.id = r.id
        ORDER BY r.id FOR NO KEY UPDATE OF r
    ), hurried AS MATERIALIZED (
        SELECT set_config('synchronous_commit', 'off', true) AS setting
    )
    UPDATE responses r SET
        status = '{TRANSITIONS["claim"].target.value}', attempt = r.attempt + 1, worker = l.claimant,
        started_at = coalesce(r.started_at, now()),
        run_deadline = coalesce(r.run_deadline, now() + make_interval(secs => r.run_seconds))
    FROM locked l, hurried
    WHERE hurried.setting = 'off' AND r.id = l.id AND (
        l.status IN ({sources("claim")}) AND coalesce(l.queue_deadline > now(), true)
        OR l.status IN ({sources("take_over")}) AND l.worker IS NULL
    )
    RETURNING {", ".join(f"r.{column.name}" for column in _COLUMNS)}
"""


async def release(
    db: Database, response_id: str, attempt: int, worker: str, *, crashed: bool = False
) -> ResponseRow | None:
    """Gives up a response that is still this attempt's, so that another worker may claim it at once.

    `crashed`: its engine died, which counts against it; an orderly stop does not.
    """
    statement = (
        update(responses)
        .where(
            responses.c.id == response_id,
            may("take_over"),
            responses.c.attempt == attempt,
            responses.c.worker == worker,
        )
        .values(worker=None, sent_at=None, sends=0, crashes=responses.c.crashes + int(crashed))
        .returning(*_COLUMNS)
    )
    async with db.autocommit() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else response_row(row)


# -- endings from outside: cancel, fail, delete ------------------------------------------------------------


async def cancellable(db: Database, response_ids: Sequence[str]) -> list[str]:
    """Those that `cancel` would end now."""
    async with db.autocommit() as connection:
        found = (await connection.execute(_STATUSES, {"ids": response_ids})).all()
    return [row.id for row in found if Status(row.status) in TRANSITIONS["cancel"].sources]


async def cancel(db: Database, response_id: str, project: str | None) -> EndResult | None:
    """`cancelled` where it is not final, with the terminal event after the last committed one.

    None: unknown id. Idempotent: on a final row the cancellation has no chunk.
    """
    return (await cancel_all(db, [response_id], project))[0]


async def cancel_all(
    db: Database, response_ids: Sequence[str], project: str | None, *, only_background: bool = False
) -> list[EndResult | None]:
    """`cancel` of several, committed together. One that is named twice has its chunk in the first place alone.

    `only_background`: others are as unknown.
    """
    wanted = {"ids": response_ids, "project": project, "only_background": only_background}
    async with db.begin() as connection:
        ended = await _end(connection, _WANTED, wanted, "cancel", ResponseStream.cancel)
    return [_taken(ended, response_id) for response_id in response_ids]


def _taken(ended: dict[str, EndResult], response_id: str) -> EndResult | None:
    if (found := ended.get(response_id)) is not None:
        ended[response_id] = EndResult(found.row, None)
    return found


async def fail(
    db: Database, response_id: str, code: str, message: str, *, only: Status | None = None
) -> EndResult | None:
    """`failed` where it is not final (and still in `only`); for maintenance, which speaks for workers that cannot."""
    error = error_object(code, message)
    values = {"id": response_id, "only": None if only is None else only.value}
    async with db.begin() as connection:
        ended = await _end(connection, _STILL, values, "fail", lambda stream: stream.fail(error))
        return ended.get(response_id)


async def delete(db: Database, project: str, response_id: str) -> EndResult | None:
    """Cancels it where it is not final, and deletes it and its events. None: unknown id."""
    wanted = {"ids": [response_id], "project": project, "only_background": False}
    async with db.begin() as connection:
        ended = await _end(connection, _WANTED, wanted, "cancel", ResponseStream.cancel)
        if ended:
            await connection.execute(delete_from(responses).where(responses.c.id == response_id))
        return ended.get(response_id)


# By their keys alone, as in journal.py; and locked in the order of all that locks several.
_AMONG = responses.c.id == any_(bindparam("ids", type_=ARRAY(Text)))
_STATUSES = select(responses.c.id, responses.c.status).where(_AMONG)
_WANTED = (
    select(*_COLUMNS)
    .where(_AMONG, responses.c.project == func.coalesce(bindparam("project", type_=Text), responses.c.project))
    .where(responses.c.background >= bindparam("only_background", type_=Boolean))
    .order_by(responses.c.id)
    .with_for_update()
)
_STILL = (
    select(*_COLUMNS)
    .where(responses.c.id == bindparam("id"))
    .where(responses.c.status == func.coalesce(bindparam("only", type_=Text), responses.c.status))
    .with_for_update()
)
_LOGS = (
    select(chunks.c.response_id, chunks.c.frames)
    .where(chunks.c.response_id == any_(bindparam("ids", type_=ARRAY(Text))))
    .order_by(chunks.c.response_id, chunks.c.first)
)
_CHUNKS = insert(chunks)
_FINAL = ("status", "output", "usage", "error", "incomplete_details", "finished_at")
"""What an ending from outside sets; what it does not hand on to the next turn, no model has said."""
_ENDED = update(responses).where(responses.c.id == bindparam("ended"))


async def _end(
    connection: AsyncConnection,
    wanted: Select[Any],
    values: Mapping[str, Any],
    transition: str,
    close: Callable[[ResponseStream], list[Event]],
) -> dict[str, EndResult]:
    """Locks the rows (so that no append is under way or can come after), and ends by `close` those that it may."""
    rows = [response_row(row) for row in await connection.execute(wanted, values)]
    found = {row.id: EndResult(row, None) for row in rows}
    may_end = [row for row in rows if row.status in TRANSITIONS[transition].sources]
    logs = await _logs(connection, [row.id for row in may_end])
    if endings := [_ended(row, logs[row.id], close) for row in may_end]:
        written = [{"response_id": ended.row.id, **_columns(chunk)} for ended, chunk in endings]
        await connection.execute(_CHUNKS, written)
        await connection.execute(_ENDED, [_final_columns(ended.row) for ended, _ in endings])
    return found | {ended.row.id: ended for ended, _ in endings}


def _ended(
    row: ResponseRow, log: Sequence[Event], close: Callable[[ResponseStream], list[Event]]
) -> tuple[EndResult, Chunk]:
    """The row as it will be, and the chunk that ends it."""
    stream = ResponseStream.restore(log)
    chunk = closing_chunk(row, stream, close)
    ending = Ending.of(stream.response, datetime.now(UTC))
    final = replace(row, worker=None, **{name: getattr(ending, name) for name in _FINAL})
    return EndResult(final, chunk), chunk


def _final_columns(row: ResponseRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in _FINAL}
    return {**values, "status": row.status.value, "worker": None, "ended": row.id}


def closing_chunk(row: ResponseRow, stream: ResponseStream, close: Callable[[ResponseStream], list[Event]]) -> Chunk:
    """The last chunk of a response that `close` ends."""
    first = stream.next_sequence
    encoded = frames.encode_all(close(stream))
    return Chunk(row.id, first, stream.next_sequence - 1, row.attempt, (), encoded, final=True)


async def _logs(connection: AsyncConnection, response_ids: Sequence[str]) -> dict[str, list[Event]]:
    """What was said of each."""
    logs: dict[str, list[Event]] = {response_id: [] for response_id in response_ids}
    for response_id, encoded in await connection.execute(_LOGS, {"ids": response_ids}):
        logs[response_id] += frames.decode(encoded)
    return logs


def _columns(chunk: Chunk) -> dict[str, Any]:
    return {
        "first": chunk.first,
        "last": chunk.last,
        "attempt": chunk.attempt,
        "final": chunk.final,
        "tokens": pack_tokens(chunk.tokens),
        "frames": chunk.frames,
    }


# -- what maintenance looks for ----------------------------------------------------------------------------


async def disown(db: Database, worker: str, max_crashes: int) -> Sequence[str]:
    """Takes everything from a worker that is gone; returns what must be failed: its `max_crashes`th crash."""
    # In the order in which the worker's journal locks rows: it may be alive, and in the middle of a batch.
    owned = select(responses.c.id).where(responses.c.worker == worker, may("take_over"))
    statement = (
        update(responses)
        .where(responses.c.id.in_(owned.order_by(responses.c.id).with_for_update().scalar_subquery()))
        .values(worker=None, sent_at=None, sends=0, crashes=responses.c.crashes + 1)
        .returning(responses.c.id, responses.c.crashes)
    )
    async with db.autocommit() as connection:
        rows = (await connection.execute(statement)).all()
    return [row.id for row in rows if row.crashes >= max_crashes]


async def overdue(db: Database, limit: int = 500) -> Sequence[tuple[str, Status]]:
    """Responses that have waited, or run, for longer than they may, and which of the two it is."""
    waited = (responses.c.status == Status.QUEUED.value) & (responses.c.queue_deadline < func.now())
    ran = (responses.c.status == Status.IN_PROGRESS.value) & (responses.c.run_deadline < func.now())
    async with db.autocommit() as connection:
        rows = await connection.execute(select(responses.c.id, responses.c.status).where(or_(waited, ran)).limit(limit))
        return [(row.id, Status(row.status)) for row in rows]


async def delete_expired(db: Database, stored: datetime, unstored: datetime, limit: int = 1000) -> int:
    """Deletes up to `limit` stored responses that ended before `stored`, and as many not stored ones; counts them."""
    deleted = 0
    async with db.autocommit() as connection:
        for kept, before in ((True, stored), (False, unstored)):
            expired = (
                select(responses.c.id)
                # not `IS true`: the partial indexes are on `store` and `NOT store`, and would not be used
                .where(responses.c.store if kept else ~responses.c.store, responses.c.finished_at < before)
                .order_by(responses.c.finished_at)
                .limit(limit)
                .with_for_update(skip_locked=True)
            )
            result = await connection.execute(
                delete_from(responses).where(responses.c.id.in_(expired.scalar_subquery()))
            )
            deleted += result.rowcount
    return deleted
