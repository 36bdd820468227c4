"""A new response, and the statement that inserts many of them with their opening events.

The statement also decides which of them are sent at once, and which wait for a dispatch (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, ClassVar

import orjson
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.answerable import approvals, call_ids
from app.protocol.events.chunk import Chunk
from app.protocol.limits import Reservation
from app.protocol.types import Json
from app.queue.message import FOREGROUND, Priority
from app.sizes import weight
from app.store.columns import TEXTS, Column, Columns, named_arrays, names, to_array
from app.store.layout import LAYOUT
from app.store.queue.placement import (
    KEPT_ROOM,
    OPEN_ROOM,
    PLACED,
    is_foreground,
    loads,
    places,
    preferred,
    ran,
    some_foreground_waits,
    some_wait,
)
from app.store.rows import CHUNK_COLUMNS, Idempotency
from app.store.tables import IS_SENT

BYTES_PER_TOKEN = 4
OUTPUT_TOKENS = 1024
"""The estimate for a response that does not say how long it may become. The end corrects it."""
MAX_COST = 2**31 - 1
PREFIX_BYTES = 4096
"""Instructions and tools of so many bytes of JSON, about 1,000 tokens, are worth to be read once (`affinity`)."""

_NUL = b"\\u0000"


@dataclass(frozen=True, slots=True)
class Reserving:
    """What a response of a project with limits reserves, besides what the size of its request says."""

    context_bytes: int
    """Of what it continues."""
    output_tokens: int | None
    """None: it reserves no tokens."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A request as the table has it."""

    json: bytes
    input_bytes: int
    """What a worker reads of it for a response that continues this one."""
    call_ids: list[str]
    approvals: list[str]

    @classmethod
    def of(cls, request: Json) -> _Stored:
        encoded_input = orjson.dumps(request["input"])
        encoded = orjson.dumps({**request, "input": orjson.Fragment(encoded_input)})
        has_nul = _NUL in encoded  # then the whole request is read in place of its input (context/items.py)
        items = request["input"]
        return cls(encoded, len(encoded if has_nul else encoded_input), call_ids(items), approvals(items))


@dataclass(frozen=True, slots=True)
class Sending:
    """What becomes of the message of a response that was inserted."""

    at_once: bool
    """Otherwise the response waits for a dispatch."""
    sent_to: str | None
    """The node of the worker that takes it; None: any takes a count, and nobody yet what waits."""
    foreground_place: bool
    """Whether it has one of the places that are kept for foreground responses."""


@dataclass(frozen=True)
class NewResponse:
    """An accepted request, about to be inserted as `queued`."""

    id: str
    project: str
    model: str
    queue: str
    priority: int
    request: Json
    created_at: datetime
    opening: Chunk
    queue_seconds: float | None = None
    """How long the response may wait for a worker; None: no limit."""
    run_seconds: float | None = None
    """How long the response may be in progress; None: no limit."""
    idempotency: Idempotency | None = None
    chain_length: int = 1
    """Responses in its chain, itself included."""
    context_bytes: int = 0
    """Of the responses in its chain before it (context/size.py)."""
    key_id: str | None = None
    """Of the API key that its caller has; None: no key was asked for."""
    reserving: Reserving | None = None
    """None: its project has no limits that responses reserve of."""
    attempt: ClassVar[int] = 0
    sent_to: ClassVar[str | None] = None
    foreground_place: ClassVar[bool] = False
    """The insert decides: `Sending`."""

    @property
    def stream(self) -> bool:
        return bool(self.request["stream"])

    @cached_property
    def stored(self) -> _Stored:
        return _Stored.of(self.request)

    @property
    def size(self) -> int:
        """What its insert writes, in bytes."""
        return len(self.stored.json) + len(self.opening.frames)

    @property
    def weight(self) -> int:
        """What it counts in a batch."""
        return weight(self.size)

    @property
    def is_limited(self) -> bool:
        return self.reserving is not None

    @property
    def affinity(self) -> int | None:
        """A number that responses have in common whose prompts begin alike, as far as their requests say so.

        Their client says so by its cache key, or by a conversation. A long beginning says so by itself: short ones are
        soon computed, and everybody has the same.
        """
        request = self.request
        conversation = request.get("conversation")
        if (key := request.get("prompt_cache_key")) is not None:
            prefix = orjson.dumps(("key", key))
        elif conversation is not None:
            prefix = orjson.dumps(("conversation", conversation["id"]))
        else:
            prefix = orjson.dumps((request.get("instructions"), request.get("tools")))
            if len(prefix) < PREFIX_BYTES:
                return None
        digest = blake2b(prefix, digest_size=8, key=self.project.encode()[: blake2b.MAX_KEY_SIZE]).digest()
        return int.from_bytes(digest, signed=True)

    @property
    def cost(self) -> int:
        return estimated_cost(len(self.stored.json) + self.context_bytes, self.request.get("max_output_tokens"))

    @property
    def reservation(self) -> Reservation | None:
        """The most that the response may use, if its project has limits.

        Every token stands for one byte at least: a prompt has no more tokens than the request and its context have
        bytes. Their JSON is longer than what a chat template writes around the texts.
        """
        if (reserving := self.reserving) is None:
            return None
        size = len(self.stored.json)
        if reserving.output_tokens is None:
            return Reservation(0, 0, size)
        return Reservation(size + reserving.context_bytes, reserving.output_tokens, size)


def estimated_cost(input_bytes: int, max_output_tokens: int | None) -> int:
    """The tokens that a response will take, as far as one can know before."""
    return min(input_bytes // BYTES_PER_TOKEN + (max_output_tokens or OUTPUT_TOKENS), MAX_COST)


def _if_any(name: str) -> Callable[[Any], Any]:
    """Returns what reads an attribute of a value, and None of None."""
    get = attrgetter(name)
    return lambda value: None if value is None else get(value)


_ROW: Columns[NewResponse] = Columns(
    Column("id", "text"),
    Column("project", "text"),
    Column("model", "text"),
    Column("queue", "text"),
    Column("priority", "int"),
    Column("background", "bool", itemgetter("background"), of="request"),
    Column("stream", "bool"),
    Column("store", "bool", itemgetter("store"), of="request"),
    Column("request", "json", bytes.decode, of="stored.json"),
    Column("input_bytes", "int", of="stored.input_bytes"),
    Column("call_ids", "text", to_array, TEXTS, of="stored.call_ids"),
    Column("approvals", "text", to_array, TEXTS, of="stored.approvals"),
    Column("previous_response_id", "text", methodcaller("get", "previous_response_id"), of="request"),
    Column("conversation_id", "text", lambda request: (request.get("conversation") or {}).get("id"), of="request"),
    Column("created_at", "timestamptz"),
    # Postgres makes a time of it: the clock of an API process decides nothing.
    Column("queue_deadline", "float8", sql="now() + make_interval(secs => {})", of="queue_seconds"),
    Column("run_seconds", "float8"),
    Column("idempotency_key", "text", _if_any("key"), of="idempotency"),
    Column("fingerprint", "bytea", _if_any("fingerprint"), of="idempotency"),
    Column("chain_length", "int"),
    Column("context_bytes", "bigint"),
    Column("key_id", "text"),
    Column("reserved_input", "bigint", _if_any("input_tokens"), of="reservation"),
    Column("reserved_output", "bigint", _if_any("output_tokens"), of="reservation"),
    Column("reserved_bytes", "bigint", _if_any("bytes"), of="reservation"),
    Column("cost", "int"),
    Column("affinity", "bigint"),
)
_OPENING: Columns[Chunk] = Columns(*CHUNK_COLUMNS)

# If nobody waits in the queue and its workers have room, responses are sent at once: an idle system takes not a step
# more than without a dispatch. Nobody is passed, so no flow is charged. Statements that run at once do not see each
# other: together they may send as many as fit into a batch of each. `sent_at` is now, because the caller sends the
# messages right after.
#
# Foreground responses first take the places that are kept for them, whatever of the background waits. Beyond these
# they do not stand behind background responses, which may run for hours, in a worker: they wait for a dispatch, which
# may make one yield.
#
# The order of the keys is that of every batch, so that two batches with the same keys do not wait for each other. If a
# key comes twice in a batch, one of the two is inserted. Rows without a key keep their order: Postgres gives positions
# as it inserts.
_HAS_BACKGROUND = f"""(SELECT true FROM loads v CROSS JOIN LATERAL (
    SELECT FROM responses z WHERE z.sent_to = v.node AND {IS_SENT.format("z.")} AND z.priority > 0
        AND NOT {is_foreground("z")} ORDER BY z.sent_to LIMIT 1) z WHERE v.queue = q.queue LIMIT 1) IS NOT NULL"""


def _insert_of(kinds: str, kept: str, has_background: str, has_place: str) -> TextClause:
    """The statement. `kinds` of places, `kept` ones and `has_background` of a queue `q`, and whether a row `b`
    `has_place`."""
    return text(
        f"""
        WITH batch AS (
            SELECT * FROM unnest({named_arrays(_ROW, _OPENING)})
                WITH ORDINALITY AS b({names(_ROW, _OPENING)}, number)
        ), queues_of AS MATERIALIZED (
            SELECT b.queue, bool_or({is_foreground("b")}) AS has_foreground FROM batch b GROUP BY b.queue
        ), loads AS MATERIALIZED ({loads("w.queue IN (SELECT queue FROM queues_of)")}
        ), places AS MATERIALIZED ({kinds}
        ), rooms AS MATERIALIZED (
            SELECT q.queue, CASE WHEN {some_wait("q.queue")} THEN 0
                ELSE (SELECT sum(p.room) FROM places p WHERE p.queue = q.queue AND NOT p.has_place) END AS room,
                {kept} AS kept, {has_background} AS has_background
            FROM queues_of q
        ), classed AS (
            SELECT b.number, b.queue, b.priority, b.previous_response_id, b.affinity, q.room, q.has_background,
                {has_place} AS has_place, b.priority = {Priority.COUNT.value} AS counts
            FROM batch b JOIN rooms q ON q.queue = b.queue
        ), numbered AS MATERIALIZED (
            SELECT b.number, b.queue, b.previous_response_id, b.affinity, b.has_place, b.counts, CASE
                WHEN b.has_place OR b.counts THEN 1
                WHEN {is_foreground("b")} AND b.has_background THEN 0
                WHEN b.room >= row_number() OVER (PARTITION BY b.queue, b.has_place, b.counts ORDER BY b.number) THEN 1
                ELSE 0 END AS sends
            FROM classed b
        ), rows AS MATERIALIZED (
            SELECT b.number, b.queue, b.has_place, {preferred("b", ran("b.previous_response_id"))} AS preferred
            FROM numbered b WHERE b.sends = 1 AND NOT b.counts
        ), {PLACED}, created AS (
            INSERT INTO responses
                ({_ROW.names}, layout, status, sent_at, sends, sent_to, foreground_place, reserved_at)
            SELECT {_ROW.select("b")}, {LAYOUT}, 'queued', CASE n.sends WHEN 1 THEN now() END, n.sends, p.node,
                n.has_place, CASE WHEN b.reserved_bytes IS NOT NULL THEN clock_timestamp() END
            FROM batch b JOIN numbered n ON n.number = b.number LEFT JOIN placed p ON p.number = b.number
            ORDER BY b.project, b.idempotency_key, b.number
            ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
            RETURNING id, sends, sent_to, foreground_place
        ), opened AS (
            INSERT INTO chunks ({_OPENING.names})
            SELECT {_OPENING.select("b")} FROM batch b WHERE id IN (SELECT id FROM created)
        )
        SELECT id, sends, sent_to, foreground_place FROM created
        """
    )


# What only foreground responses need takes 15 % of Postgres' time for a statement, even where none is among them.
_INSERT_BACKGROUND = _insert_of(places((False, OPEN_ROOM)), "0", "false", "false")
_INSERT = _insert_of(
    places((False, OPEN_ROOM), (True, KEPT_ROOM)),
    f"CASE WHEN {some_foreground_waits('q.queue')} THEN 0 ELSE "
    "(SELECT sum(p.room) FROM places p WHERE p.queue = q.queue AND p.has_place) END",
    f"q.has_foreground AND {_HAS_BACKGROUND}",
    f"({is_foreground('b')} AND coalesce(q.kept, 0) >= row_number() OVER ("
    f"PARTITION BY b.queue, {is_foreground('b')} ORDER BY b.number))",
)


async def insert(connection: AsyncConnection, batch: Sequence[NewResponse]) -> dict[str, Sending]:
    """Returns of each response that was inserted, by its id, whether and where its message is to be sent."""
    openings = [new.opening for new in batch]
    parameters = {**_ROW.named_parameters(batch), **_OPENING.named_parameters(openings)}
    statement = _INSERT if any(new.priority in FOREGROUND for new in batch) else _INSERT_BACKGROUND
    inserted = await connection.execute(statement, parameters)
    return {row.id: Sending(bool(row.sends), row.sent_to, row.foreground_place) for row in inserted}
