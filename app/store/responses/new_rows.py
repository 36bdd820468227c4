"""A new response, and the statement that inserts many of them with their opening events.

Before it, `app/scheduling` decides which of them are sent at once, and which wait for a dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, ClassVar

import asyncpg
import orjson

from app.protocol.answerable import approvals, call_ids, given_ids
from app.protocol.events.chunk import Chunk
from app.protocol.limits import Reservation
from app.protocol.types import Json
from app.queue.message import FOREGROUND
from app.scheduling.decisions import Arrival, Sending, at_once
from app.scheduling.placement import Candidate
from app.sizes import is_large, weight
from app.store.columns import TEXTS, Column, Columns, names, numbered_arrays, to_array, to_json
from app.store.database import Connection, Database, fetch
from app.store.layout import LAYOUT
from app.store.queue.facts import states
from app.store.responses.lines import Lines
from app.store.rows import CHUNKS, NOWHERE, BatchPlace, Idempotency, Origin

MAX_BATCH = 256
"""Responses of one insert, by weight."""
BYTES_PER_TOKEN = 4
OUTPUT_TOKENS = 1024
"""The estimate for a response that does not say how long it may become. The end corrects it."""
MAX_COST = 2**31 - 1
PREFIX_BYTES = 4096
"""Instructions and tools of so many bytes of JSON, about 1,000 tokens, are worth to be read once (`affinity`)."""

_NUL = b"\\u0000"


@dataclass(frozen=True, slots=True)
class Reserving:
    """The reservation of a response of a project with limits, besides the size of its request."""

    context_bytes: int
    """Size of what it continues."""
    output_tokens: int | None
    """The reserved tokens; None: it reserves none."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A request as the table has it."""

    json: bytes
    input_bytes: int
    """Bytes that a worker reads for a response that continues this one."""
    call_ids: list[str]
    approvals: list[str]
    input_ids: list[str]

    @classmethod
    def of(cls, request: Json, response_id: str) -> _Stored:
        encoded_input = orjson.dumps(request["input"])
        encoded = orjson.dumps({**request, "input": orjson.Fragment(encoded_input)})
        has_nul = _NUL in encoded  # then the whole request is read in place of its input (context/items.py)
        items = request["input"]
        beside = call_ids(items), approvals(items), given_ids(items, response_id)
        return cls(encoded, len(encoded if has_nul else encoded_input), *beside)


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
    window_seconds: float | None = None
    """When it is due, from now on, if it has the priority of work in windows; else None."""
    idempotency: Idempotency | None = None
    chain_length: int = 1
    """Responses in its chain, itself included."""
    context_bytes: int = 0
    """Size of the responses in its chain before it (context/size.py)."""
    origin: Origin = NOWHERE
    """Origin of its request."""
    reserving: Reserving | None = None
    """The reservation; None: its project has no limits that responses reserve of."""
    ran_on: str | None = None
    """The node of the worker that ran the response that it continues."""
    retry_of: str | None = None
    """The response whose request it repeats; None: the request is a client's."""
    place: BatchPlace | None = None
    """The response's place in its batch; None: it is no line of a batch."""
    attempt: ClassVar[int] = 0
    sent_to: ClassVar[str | None] = None
    foreground_place: ClassVar[bool] = False
    """The insert decides: `Sending`."""

    @property
    def stream(self) -> bool:
        return bool(self.request["stream"])

    @property
    def continuation_id(self) -> str | None:
        """What it goes together with."""
        found: str | None = self.request.get("continuation_id")
        return found

    @cached_property
    def stored(self) -> _Stored:
        return _Stored.of(self.request, self.id)

    @property
    def size(self) -> int:
        """Bytes that the insert writes."""
        return len(self.stored.json) + len(self.opening.frames)

    @property
    def weight(self) -> int:
        """The row's weight in a batch of inserts: a large one is alone."""
        return MAX_BATCH if is_large(self.size) else weight(self.size)

    @property
    def is_limited(self) -> bool:
        return self.reserving is not None

    @property
    def affinity(self) -> int | None:
        """A number that responses have in common whose prompts begin alike, as far as their requests say so.

        Their client says so by a continuation, by its cache key, or by a conversation. A long beginning says so by
        itself: short ones are soon computed, and everybody has the same.
        """
        request = self.request
        conversation = request.get("conversation")
        if self.continuation_id is not None:
            prefix = orjson.dumps(("continuation", self.continuation_id))
        elif (key := request.get("prompt_cache_key")) is not None:
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
    Column("include", "text", lambda request: to_array(request["include"]), TEXTS, of="request"),
    Column("request", "json", bytes.decode, of="stored.json"),
    Column("metadata", "json", lambda request: to_json(request.get("metadata") or None), of="request"),
    Column("input_bytes", "int", of="stored.input_bytes"),
    Column("call_ids", "text", to_array, TEXTS, of="stored.call_ids"),
    Column("approvals", "text", to_array, TEXTS, of="stored.approvals"),
    Column("input_ids", "text", to_array, TEXTS, of="stored.input_ids"),
    Column("previous_response_id", "text", methodcaller("get", "previous_response_id"), of="request"),
    Column("conversation_id", "text", lambda request: (request.get("conversation") or {}).get("id"), of="request"),
    Column("created_at", "timestamptz"),
    # Postgres makes a time of it: the clock of an API process decides nothing.
    Column("queue_deadline", "float8", sql="now() + make_interval(secs => {})", of="queue_seconds"),
    Column("run_seconds", "float8"),
    Column("due_at", "float8", sql="due.at", of="window_seconds"),
    Column("idempotency_key", "text", _if_any("key"), of="idempotency"),
    Column("fingerprint", "bytea", _if_any("fingerprint"), of="idempotency"),
    Column("chain_length", "int"),
    Column("context_bytes", "bigint"),
    Column("key_id", "text", of="origin.key_id"),
    Column("request_id", "text", of="origin.request_id"),
    Column("traceparent", "text", of="origin.traceparent"),
    Column("tracestate", "text", of="origin.tracestate"),
    Column("retry_of", "text"),
    Column("reserved_input", "bigint", _if_any("input_tokens"), of="reservation"),
    Column("reserved_output", "bigint", _if_any("output_tokens"), of="reservation"),
    Column("reserved_bytes", "bigint", _if_any("bytes"), of="reservation"),
    Column("cost", "int"),
    Column("affinity", "bigint"),
    Column("batch_id", "text", _if_any("batch_id"), of="place"),
    Column("batch_line", "int", _if_any("line"), of="place"),
    Column("custom_id", "text", _if_any("custom_id"), of="place"),
)

_CONTINUATION: Columns[NewResponse] = Columns(Column("continuation_id", "text"))
_SENDING: Columns[Sending] = Columns(
    Column("at_once", "bool"), Column("sent_to", "text"), Column("foreground_place", "bool")
)

# `sent_at` is now, because the caller sends the messages right after.
#
# The order of the keys is that of every batch, so that two batches with the same keys do not wait for each other. If a
# key comes twice in a batch, one of the two is inserted. Rows without a key keep their order: Postgres gives positions
# as it inserts.
#
# What continues takes the rank of its continuation's head for two hours, or until the head's window ends; else it is
# the next head.
# A line is due when its batch is, to the microsecond: so all of a batch have one rank, and keep their order.
_INSERT = f"""
    WITH batch AS (
        SELECT * FROM unnest({numbered_arrays(_ROW, _CONTINUATION, CHUNKS, _SENDING)})
            WITH ORDINALITY AS b({names(_ROW, _CONTINUATION, CHUNKS, _SENDING)}, number)
    ), created AS (
        INSERT INTO responses ({_ROW.names}, layout, status, sent_at, sends, sent_to, foreground_place, reserved_at,
            rank, heads)
        SELECT {_ROW.select("b")}, {LAYOUT}, 'queued', CASE WHEN b.at_once THEN now() END, CAST(b.at_once AS int),
            b.sent_to, b.foreground_place, CASE WHEN b.reserved_bytes IS NOT NULL THEN clock_timestamp() END,
            least(h.rank, CAST(1000000 * extract(epoch FROM due.at) AS bigint)),
            CASE WHEN h.rank IS NULL THEN b.continuation_id END
        FROM batch b CROSS JOIN LATERAL (
            SELECT coalesce(
                (SELECT d.due_at FROM batches d WHERE d.id = b.batch_id), now() + make_interval(secs => b.due_at)
            ) AS at
        ) due LEFT JOIN LATERAL (
            SELECT coalesce(p.rank, p.position) AS rank FROM responses p
            WHERE p.project = b.project AND p.heads = b.continuation_id AND p.queue = b.queue
                AND p.priority = b.priority AND coalesce(p.due_at, p.inserted_at + interval '2 hours') > now()
            ORDER BY p.position DESC LIMIT 1
        ) h ON true
        ORDER BY b.project, b.idempotency_key, b.number
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id, queue
    ), opened AS (
        INSERT INTO chunks ({CHUNKS.names})
        SELECT {CHUNKS.select("b")} FROM batch b WHERE id IN (SELECT id FROM created)
    )
    """
_INSERT_DECIDED = f"{_INSERT} SELECT id FROM created"
# All of a statement sees the table as it was before: those of the batch are not among those that wait. Where
# something is paused, who waits takes a decision.
_INSERT_BEHIND = f"""{_INSERT}
    SELECT c.id, (SELECT true FROM waiting_responses r WHERE r.queue = c.queue
            ORDER BY r.queue, r.project, r.priority, r.rank, r.position LIMIT 1) IS NOT NULL
        AND NOT EXISTS (SELECT FROM pauses u WHERE u.queue = c.queue)
    FROM created c
"""


async def insert(
    reads: Database | Connection, writes: Connection | asyncpg.Connection, batch: Sequence[NewResponse], lines: Lines
) -> dict[str, Sending]:
    """Returns of each response that was inserted, by its id, whether and where its message is to be sent; and of each
    that is refused, that it is. `writes` is a transaction, or what commits by itself; `reads` sees what that sees.

    Batches that are inserted at the same moment do not see each other: together they may send more at once than there
    are slots.
    """
    if lines.can_be_joined([(new.queue, new.priority) for new in batch]):
        return await _join(writes, batch, lines)
    sendings = await _decided(reads, batch, lines)
    refused = {id_: each for id_, each in sendings.items() if each.is_refused}
    if not (kept := [new for new in batch if new.id not in refused]):
        return refused
    inserted = await fetch(writes, _INSERT_DECIDED, _parameters(kept, [sendings[new.id] for new in kept]))
    return {id_: sendings[id_] for (id_,) in inserted} | refused


async def _join(
    writes: Connection | asyncpg.Connection, batch: Sequence[NewResponse], lines: Lines
) -> dict[str, Sending]:
    """Inserts what waits behind others, in one round trip where a decision takes two
    (docs/internals/decisions/fair-queue.md)."""
    rows = await fetch(writes, _INSERT_BEHIND, _parameters(batch, [Sending(False)] * len(batch)))
    queues = {new.id: new.queue for new in batch}
    lines.note({queues[id_] for id_, is_behind in rows if not is_behind}, waits=False)
    lines.note({queues[id_] for id_, is_behind in rows if is_behind}, waits=True)
    return {id_: Sending(False, is_first=not is_behind) for id_, is_behind in rows}


async def insert_waiting(connection: Connection, batch: Sequence[NewResponse]) -> dict[str, Sending]:
    """`insert` of responses that wait for a dispatch, whatever room there is."""
    inserted = await fetch(connection, _INSERT_DECIDED, _parameters(batch, [Sending(False)] * len(batch)))
    return {id_: Sending(False) for (id_,) in inserted}


def _parameters(batch: Sequence[NewResponse], sendings: Sequence[Sending]) -> list[list[Any]]:
    openings = CHUNKS.parameters([new.opening for new in batch])
    return [*_ROW.parameters(batch), *_CONTINUATION.parameters(batch), *openings, *_SENDING.parameters(sendings)]


async def _decided(reads: Database | Connection, batch: Sequence[NewResponse], lines: Lines) -> dict[str, Sending]:
    """The decision on each response's message."""
    made: dict[str, Sending] = {}
    # Behind others that wait, only foreground responses may be sent at once.
    has_foreground = any(new.priority in FOREGROUND for new in batch)
    found = await states(reads, {new.queue for new in batch}, if_some_wait=has_foreground)
    for queue, state in found.items():
        lines.note([queue], waits=state.waits)
        own = [(new, Candidate(new.id, (new.ran_on,), new.affinity)) for new in batch if new.queue == queue]
        arrivals = [Arrival(candidate, new.priority, new.project) for new, candidate in own]
        made |= at_once(arrivals, state)
    return made
