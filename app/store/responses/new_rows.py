"""The row of a new response, and the statement that inserts many of them with their opening events.

The statement also decides which of them are sent at once, and which wait for a dispatch (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.events.chunk import Chunk
from app.protocol.limits import Reservation
from app.queue.message import Priority
from app.store.columns import Column, Columns, named_arrays, names
from app.store.formats import FORMAT
from app.store.queue.window import room, slots, some_wait
from app.store.rows import CHUNK_COLUMNS, NewResponse

BYTES_PER_TOKEN = 4
OUTPUT_TOKENS = 1024
"""The estimate for a response that does not say how long it may become. The end corrects it."""
MAX_COST = 2**31 - 1

_NUL = b"\\u0000"


@dataclass(frozen=True, slots=True)
class NewRow:
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
    input_bytes: int
    """What a worker reads of the request for a response that continues this one."""
    previous_response_id: str | None
    conversation_id: str | None
    created_at: datetime
    queue_deadline: float | None
    """Seconds from now. Postgres makes a time of it: the clock of an API process decides nothing."""
    run_seconds: float | None
    idempotency_key: str | None
    fingerprint: bytes | None
    chain_length: int
    context_bytes: int
    format: int
    key_id: str | None
    reserved_input: int | None
    reserved_output: int | None
    reserved_bytes: int | None
    """NULL, like the two before: the project has no limits."""
    cost: int

    @classmethod
    def of(cls, new: NewResponse) -> NewRow:
        request, idempotency = new.request, new.idempotency
        encoded_input = orjson.dumps(request["input"])
        encoded = orjson.dumps({**request, "input": orjson.Fragment(encoded_input)})
        has_nul = _NUL in encoded  # then the whole request is read in place of its input (context/items.py)
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
            request=encoded.decode(),
            input_bytes=len(encoded if has_nul else encoded_input),
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
            cost=estimated_cost(len(encoded) + new.context_bytes, request.get("max_output_tokens")),
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


_ROW: Columns[NewRow] = Columns(
    Column("id", "text"),
    Column("project", "text"),
    Column("model", "text"),
    Column("queue", "text"),
    Column("priority", "int"),
    Column("background", "bool"),
    Column("stream", "bool"),
    Column("store", "bool"),
    Column("request", "json"),
    Column("input_bytes", "int"),
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
# key comes twice in a batch, one of the two is inserted. Rows without a key keep their order: Postgres gives positions
# as it inserts.
_SLOTS = slots("q.queue", "NULL")
_INSERT = text(
    f"""
    WITH batch AS (
        SELECT * FROM unnest({named_arrays(_ROW, _OPENING)}) WITH ORDINALITY AS b({names(_ROW, _OPENING)}, number)
    ), rooms AS MATERIALIZED (
        SELECT q.queue, CASE WHEN {some_wait("q.queue")} THEN 0 ELSE {room("q.queue", _SLOTS)} END AS room
        FROM (SELECT DISTINCT queue FROM batch) q
    ), numbered AS (
        SELECT b.*, CASE WHEN b.priority = {Priority.URGENT.value} OR q.room >= row_number() OVER (
            PARTITION BY b.queue, b.priority = {Priority.URGENT.value} ORDER BY b.number) THEN 1 ELSE 0 END AS sends
        FROM batch b JOIN rooms q ON q.queue = b.queue
    ), created AS (
        INSERT INTO responses ({_ROW.names}, status, sent_at, sends, reserved_at)
        SELECT {_ROW.select("b")}, 'queued', CASE b.sends WHEN 1 THEN now() END, b.sends,
            CASE WHEN reserved_bytes IS NOT NULL THEN clock_timestamp() END
        FROM numbered b ORDER BY project, idempotency_key, number
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id, sends
    ), opened AS (
        INSERT INTO chunks ({_OPENING.names})
        SELECT {_OPENING.select("b")} FROM batch b WHERE id IN (SELECT id FROM created)
    )
    SELECT id, sends FROM created
    """
)

Item = tuple[NewRow, Chunk]
"""A row, and the first chunk of its log."""


async def insert(connection: AsyncConnection, batch: Sequence[Item]) -> dict[str, int]:
    """Returns for each row that was inserted, by its id, the number of messages that are to be sent of it."""
    rows, openings = zip(*batch, strict=True)
    parameters = {**_ROW.named_parameters(rows), **_OPENING.named_parameters(openings)}
    return {row.id: int(row.sends) for row in await connection.execute(_INSERT, parameters)}
