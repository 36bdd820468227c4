"""Inserting new responses: those that come during one insert share the next one, in one statement and one commit.

The statement also decides which of them are sent at once, and which wait for a dispatch (dispatch.py).
Responses of projects with limits share inserts of their own, which reserve in the same transaction (limits.py). Such an
insert waits for no project's lock: if a project is locked, its responses leave the batch and wait in a batch of their
project, so that the others do not wait with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.batching import Batcher
from app.protocol.errors import LimitReached
from app.protocol.events.chunk import Chunk
from app.protocol.limits import Allowance, LimitState, Reservation, Shortage, admit
from app.queue.message import Priority
from app.store import limits
from app.store.columns import Column, Columns, named_arrays, names, to_json
from app.store.database import Database, StoreUnavailable
from app.store.formats import FORMAT
from app.store.limits import Held
from app.store.responses import get_by_key
from app.store.rows import CHUNK_COLUMNS, NewResponse, ResponseRow
from app.store.window import room, slots, some_wait

MAX_BATCH = 256
HEAVY_BYTES = 64 * 1024
"""A request counts as one more row for every so many bytes: a batch must stay below Postgres' limit of 1 GiB."""
LARGE_WEIGHT = 8
"""Half a megabyte takes tens of milliseconds to be inserted."""
BYTES_PER_TOKEN = 4
OUTPUT_TOKENS = 1024
"""The estimate for a response that does not say how long it may become. The end corrects it."""
MAX_COST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Row:
    """The columns of a new response."""

    id: str
    project: str
    model: str
    queue: str
    priority: int
    background: bool
    stream: bool
    store: bool
    request: str
    previous_response_id: str | None
    conversation_id: str | None
    created_at: datetime
    queue_deadline: float | None
    """Seconds from now. Postgres makes a time of it: the clock of an API process decides nothing."""
    run_seconds: float | None
    idempotency_key: str | None
    fingerprint: bytes | None
    chain_length: int | None
    context_bytes: int | None
    format: int
    key_id: str | None
    reserved_input: int | None
    reserved_output: int | None
    reserved_bytes: int | None
    """NULL, like the two before: the project has no limits."""
    cost: int

    @classmethod
    def of(cls, new: NewResponse) -> _Row:
        request, idempotency = new.request, new.idempotency
        encoded = to_json(request) or ""
        reserved = _reservation(new, len(encoded))
        return cls(
            id=new.id,
            project=new.project,
            model=new.model,
            queue=new.queue,
            priority=new.priority,
            background=request["background"],
            stream=request["stream"],
            store=request["store"],
            request=encoded,
            previous_response_id=request.get("previous_response_id"),
            conversation_id=(request.get("conversation") or {}).get("id"),
            created_at=new.created_at,
            queue_deadline=new.queue_seconds,
            run_seconds=new.run_seconds,
            idempotency_key=idempotency.key if idempotency else None,
            fingerprint=idempotency.fingerprint if idempotency else None,
            chain_length=new.chain_length,
            context_bytes=new.context_bytes,
            format=FORMAT,
            key_id=new.key_id,
            reserved_input=None if reserved is None else reserved.input_tokens,
            reserved_output=None if reserved is None else reserved.output_tokens,
            reserved_bytes=None if reserved is None else reserved.bytes,
            cost=estimated_cost(len(encoded) + (new.context_bytes or 0), request.get("max_output_tokens")),
        )

    @property
    def reservation(self) -> Reservation:
        return Reservation(self.reserved_input or 0, self.reserved_output or 0, self.reserved_bytes or 0)


def _reservation(new: NewResponse, size: int) -> Reservation | None:
    """Returns the most that a response may use, if its project has limits. `size` is that of the stored request.

    Every token stands for one byte at least: a prompt has no more tokens than the request and its context have bytes.
    Their JSON is longer than what a chat template writes around the texts.
    """
    if (reserving := new.reserving) is None:
        return None
    if reserving.output_tokens is None:
        return Reservation(0, 0, size)
    return Reservation(size + reserving.context_bytes, reserving.output_tokens, size)


def estimated_cost(input_bytes: int, max_output_tokens: int | None) -> int:
    """The tokens that a response will take, as far as one can know before."""
    return min(input_bytes // BYTES_PER_TOKEN + (max_output_tokens or OUTPUT_TOKENS), MAX_COST)


_ROW: Columns[_Row] = Columns(
    Column("id", "text"),
    Column("project", "text"),
    Column("model", "text"),
    Column("queue", "text"),
    Column("priority", "int"),
    Column("background", "bool"),
    Column("stream", "bool"),
    Column("store", "bool"),
    Column("request", "json"),
    Column("previous_response_id", "text"),
    Column("conversation_id", "text"),
    Column("created_at", "timestamptz"),
    Column("queue_deadline", "float8", sql="now() + make_interval(secs => {})"),
    Column("run_seconds", "float8"),
    Column("idempotency_key", "text"),
    Column("fingerprint", "bytea"),
    Column("chain_length", "int"),
    Column("context_bytes", "bigint"),
    Column("format", "int"),
    Column("key_id", "text"),
    Column("reserved_input", "bigint"),
    Column("reserved_output", "bigint"),
    Column("reserved_bytes", "bigint"),
    Column("cost", "int"),
)
_OPENING: Columns[Chunk] = Columns(*CHUNK_COLUMNS)

# If nobody waits in the queue and its workers have room, responses are sent at once: an idle system takes not a step
# more than without a dispatch. Nobody is passed, so no flow is charged. Statements that run at once do not see each
# other: together they may send as many as fit into a batch of each. `sent_at` is now, because the caller sends the
# messages right after.
#
# The order of the keys is that of every batch, so that two batches with the same keys do not wait for each other. If a
# key comes twice in a batch, one of the two is inserted.
_SLOTS = slots("q.queue", "NULL")
_INSERT = text(
    f"""
    WITH batch AS (
        SELECT * FROM unnest({named_arrays(_ROW, _OPENING)}) AS b({names(_ROW, _OPENING)})
    ), rooms AS MATERIALIZED (
        SELECT q.queue, CASE WHEN {some_wait("q.queue")} THEN 0 ELSE {room("q.queue", _SLOTS)} END AS room
        FROM (SELECT DISTINCT queue FROM batch) q
    ), numbered AS (
        SELECT b.*, CASE WHEN b.priority = {Priority.URGENT.value} OR q.room >= row_number() OVER (
            PARTITION BY b.queue, b.priority = {Priority.URGENT.value} ORDER BY b.created_at) THEN 1 ELSE 0 END AS sends
        FROM batch b JOIN rooms q ON q.queue = b.queue
    ), created AS (
        INSERT INTO responses ({_ROW.names}, status, sent_at, sends, reserved_at)
        SELECT {_ROW.select("b")}, 'queued', CASE b.sends WHEN 1 THEN now() END, b.sends,
            CASE WHEN reserved_bytes IS NOT NULL THEN clock_timestamp() END
        FROM numbered b ORDER BY project, idempotency_key
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id, sends
    ), opened AS (
        INSERT INTO chunks ({_OPENING.names})
        SELECT {_OPENING.select("b")} FROM batch b WHERE id IN (SELECT id FROM created)
    )
    SELECT id, sends FROM created
    """
)


_Item = tuple[_Row, Chunk]


class _Locked:
    """Another transaction reserves for the same project."""


@dataclass(frozen=True, slots=True)
class _Inserted:
    sends: int
    """How many messages are to be sent at once: 1, or 0 for a response that waits."""
    allowance: Allowance | None
    """What the limits of the project leave; None without limits."""


_Result = _Inserted | Shortage | None
"""None: the idempotency key is taken."""


class Inserter:
    """Inserts responses as `queued`, each with its opening events, committed together.

    Large ones are inserted one by one beside the others, which do not wait for them. `send` is called for each
    response that is to be sent at once; the others wait for a dispatch.
    """

    def __init__(self, db: Database, send: Callable[[NewResponse], None] = lambda _: None) -> None:
        self._db = db
        self._send = send
        away = (StoreUnavailable,)
        self._batches = Batcher(self._insert, max_items=MAX_BATCH, weight=_weight, shared_errors=away)
        self._large = Batcher(self._insert, max_items=1, shared_errors=away)
        self._limited = Batcher(self._reserve_if_free, max_items=MAX_BATCH, weight=_weight, shared_errors=away)
        self._large_limited = Batcher(self._reserve_if_free, max_items=1, shared_errors=away)
        self._contended: dict[str, Batcher[_Item, _Result]] = {}
        """By project: those that wait for its lock."""

    async def create(self, new: NewResponse) -> ResponseRow | Allowance | None:
        """Inserts a response, and returns what its project's limits leave, or None without limits.

        If the project has a response with the same idempotency key, returns that one, and inserts nothing. Raises
        StoreUnavailable, and LimitReached if the response does not fit into a limit.
        """
        row = _Row.of(new)
        item = (row, new.opening)
        while (result := await self._submit(item)) is None:
            assert new.idempotency is not None
            if (existing := await get_by_key(self._db, new.project, new.idempotency.key)) is not None:
                return existing
            # The response with that key was deleted in the meantime, so the key is free.
        if isinstance(result, Shortage):
            raise LimitReached(result)
        if result.sends:
            self._send(new)
        return result.allowance

    async def close(self) -> None:
        for batches in (self._batches, self._large, *self._contended.values()):
            await batches.close()
        await self._limited.close()
        await self._large_limited.close()

    async def _submit(self, item: _Item) -> _Result:
        is_large, project = _weight(item) > LARGE_WEIGHT, item[0].project
        if item[0].reserved_bytes is None:
            return await (self._large if is_large else self._batches).submit(item)
        if project not in self._contended:
            result = await (self._large_limited if is_large else self._limited).submit(item)
            if not isinstance(result, _Locked):
                return result
        return await self._in_turn(project, item)

    async def _in_turn(self, project: str, item: _Item) -> _Result:
        """Waits for the project's lock, together with its other responses that do."""
        if (batches := self._contended.get(project)) is None:
            batches = Batcher(self._reserve, max_items=MAX_BATCH, weight=_weight, shared_errors=(StoreUnavailable,))
            self._contended[project] = batches
        try:
            return await batches.submit(item)
        finally:
            if batches.is_idle and self._contended.get(project) is batches:
                del self._contended[project]

    async def _insert(self, batch: Sequence[_Item]) -> list[_Result]:
        """Inserts rows without limits."""
        async with self._db.autocommit() as connection:
            sends = await _insert(connection, batch)
        return [_Inserted(sends[row.id], None) if row.id in sends else None for row, _ in batch]

    async def _reserve_if_free(self, batch: Sequence[_Item]) -> list[_Result | _Locked]:
        """Inserts the rows that fit into the limits of their projects, but not those of locked projects."""
        async with self._db.begin() as connection:
            held = await limits.hold(connection, [row.project for row, _ in batch], waits=False)
            ours = [item for item in batch if item[0].project in held.projects]
            results = iter(await _reserve(connection, held, ours) if ours else ())
        return [next(results) if row.project in held.projects else _Locked() for row, _ in batch]

    async def _reserve(self, batch: Sequence[_Item]) -> list[_Result]:
        """Inserts the rows that fit into the limits of their projects, once nobody else has those locked."""
        async with self._db.begin() as connection:
            held = await limits.hold(connection, [row.project for row, _ in batch])
            return await _reserve(connection, held, batch)


async def _reserve(connection: AsyncConnection, held: Held, batch: Sequence[_Item]) -> list[_Result]:
    """Inserts the rows that fit, and stores what they take."""
    rows = [row for row, _ in batch]
    admitted = _admitted(held.states, rows)
    fitting = [item for item, result in zip(batch, admitted, strict=True) if isinstance(result, Allowance)]
    sends = await _insert(connection, fitting) if fitting else {}
    await held.write(connection, _taken(held.states, [row for row, _ in fitting if row.id in sends]))
    return [
        result if isinstance(result, Shortage) else _Inserted(sends[row.id], result) if row.id in sends else None
        for row, result in zip(rows, admitted, strict=True)
    ]


async def _insert(connection: AsyncConnection, batch: Sequence[_Item]) -> dict[str, int]:
    """Returns for each row that was inserted, by its id, the number of messages that are to be sent of it."""
    rows, openings = zip(*batch, strict=True)
    parameters = {**_ROW.named_parameters(rows), **_OPENING.named_parameters(openings)}
    return {row.id: int(row.sends) for row in await connection.execute(_INSERT, parameters)}


def _admitted(states: Sequence[LimitState], rows: Sequence[_Row]) -> list[Allowance | Shortage]:
    """Returns for each row what is left after it, or why it does not fit; the earlier ones come first."""
    by_project, results = _by_project(states), list[Allowance | Shortage]()
    for row in rows:
        after = admit(by_project.get(row.project, []), row.project, row.model, row.reservation)
        if isinstance(after, Shortage):
            results.append(after)
        else:
            by_project[row.project] = after
            results.append(Allowance.of(state for state in after if state.covers(row.project, row.model)))
    return results


def _taken(states: Sequence[LimitState], rows: Sequence[_Row]) -> list[LimitState]:
    """Returns the states, in their order, after the rows, which fit, have reserved."""
    by_project = _by_project(states)
    for row in rows:
        own = by_project.get(row.project, [])
        by_project[row.project] = [
            state.take(row.reservation) if state.covers(row.project, row.model) else state for state in own
        ]
    return [state for own in by_project.values() for state in own]


def _by_project(states: Sequence[LimitState]) -> dict[str, list[LimitState]]:
    """A batch may have as many projects as rows: each row is held against the limits of its own alone."""
    return {project: list(own) for project, own in groupby(states, attrgetter("project"))}


def _weight(item: _Item) -> int:
    row, opening = item
    return 1 + (len(row.request) + len(opening.frames)) // HEAVY_BYTES
