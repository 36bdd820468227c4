"""The log of each response: chunks, appended under a fence and read in order.

`append` holds the second and the third law. One statement locks the rows that are still `in_progress` under the
writer's attempt, inserts their chunks and, if a chunk is final, ends the response. Without the lock (FOR SHARE) an
event could land after a reader has seen the final row. A response whose id does not come back was cancelled or taken
over: nothing of its entry was written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import asyncpg
from sqlalchemy import Row, text

from app.heavy import off_loop
from app.protocol.answerable import approval_of, approvals, call_id_of, call_ids
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, LogSlice
from app.protocol.events.machine import ResponseStream
from app.protocol.response import brief_object
from app.protocol.status import Status
from app.protocol.text import type_and_places
from app.protocol.types import Json
from app.sizes import is_large, json_size
from app.store.columns import TEXTS, Column, Columns, names, numbered_arrays, to_array, to_json
from app.store.database import Database, StoreBusy
from app.store.guards import LOG_STATE
from app.store.packing import unpack_events, unpack_tokens
from app.store.rows import CHUNKS, ENDING, LOG_PAGE_BYTES, Ending
from app.store.tables import RESPONSE_EVENT
from config.logging.context import about

log = logging.getLogger("longhaul.store")


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk that a worker appends; with an ending, the chunk is the response's last."""

    worker: str
    chunk: Chunk
    ending: Ending | None = None
    conversation_input: Sequence[Json] | None = None
    """The response's input, which goes into its conversation with the output when it ends; None: no conversation."""
    request: Json | None = None
    """Takes the place of the row's request when the response ends, because that has secrets; None: it stays."""
    is_followed: bool = True
    """Whether the chunk is published after its commit (`ResponseRow.is_followed`)."""
    size: int = field(init=False)
    """In bytes. An ending has its output once more, and a conversation gets it and the input. The events hold the
    output as well, so their bytes stand for its size."""

    def __post_init__(self) -> None:
        copies = 1 if self.ending is None else 2 if self.conversation_input is None else 3
        added = [*(self.conversation_input or ()), *filter(None, [self.request])]
        object.__setattr__(self, "size", copies * len(self.chunk.frames) + json_size(added))


class ItemTaken(Exception):
    """A conversation has an item already with the id of one that a response adds to it. Nothing was committed."""


_WORKER: Columns[Entry] = Columns(Column("worker", "text"))

# A repeated append (the connection broke during the first one) finds its own chunk and counts it as appended. Any
# other chunk with that number means that the entry is not appended. ON CONFLICT would log each chunk twice: its rows
# are inserted on trial. Without it, a repeated append that meets the first one under way fails, and is repeated.
#
# Rows are found by their key alone, and their status is compared once they are locked. If the query asked for worker
# or status, Postgres with old statistics would choose a partial index and read all running responses. LIMIT makes it
# look each chunk up.
_APPENDED = f"""
    WITH batch AS (
        SELECT * FROM unnest({numbered_arrays(CHUNKS, _WORKER)}) AS b({names(CHUNKS, _WORKER)})
    ), locked AS MATERIALIZED (
        SELECT r.id, r.status, r.attempt, r.worker FROM responses r JOIN batch b ON b.response_id = r.id
        ORDER BY r.id FOR SHARE OF r
    ), held AS (
        SELECT l.id FROM locked l JOIN batch b ON b.response_id = l.id AND b.attempt = l.attempt
            AND b.worker = l.worker
        WHERE l.status = 'in_progress'
    ), known AS MATERIALIZED (
        SELECT c.response_id, c.first, c.attempt = b.attempt AND c.frames = b.frames AS is_same, c.bytes
        FROM batch b JOIN held h ON h.id = b.response_id CROSS JOIN LATERAL (
            SELECT * FROM chunks k WHERE k.response_id = b.response_id AND k.first = b.first LIMIT 1
        ) c
    ), inserted AS (
        INSERT INTO chunks ({CHUNKS.names})
        SELECT {CHUNKS.select("b")} FROM batch b JOIN held h ON h.id = b.response_id
        WHERE b.response_id NOT IN (SELECT response_id FROM known)
        RETURNING response_id, first, bytes
    ), appended AS (
        SELECT * FROM inserted UNION ALL SELECT response_id, first, bytes FROM known WHERE is_same
    )"""

_APPEND = f"{_APPENDED} SELECT response_id FROM appended"

# Calls and approvals are added to those of the input.
_OF_TURNS: Columns[Ending] = Columns(
    Column("tool_results", "json", to_json),
    Column("messages", "json", to_json),
    Column("call_ids", "text", lambda output: to_array(call_ids(output)), f"r.call_ids || {TEXTS}", of="output"),
    Column("approvals", "text", lambda output: to_array(approvals(output)), f"r.approvals || {TEXTS}", of="output"),
)
_ENDED: Columns[Chunk] = Columns(Column("response_id", "text"))
_KEPT: Columns[Entry] = Columns(Column("request", "json", to_json))
_LAST: tuple[Columns[Any], ...] = (ENDING, _OF_TURNS, _ENDED, _KEPT)

# Chunks and endings in one statement: one round trip, one commit.
_APPEND_AND_END = f"""{_APPENDED}, ended AS (
        UPDATE responses r SET {ENDING.assign("e")}, {_OF_TURNS.assign("e")}, worker = NULL,
            event_id = {RESPONSE_EVENT}, request = coalesce(CAST(e.request AS json), r.request),
            log_bytes = a.bytes + b.bytes, log = {LOG_STATE.format("a.bytes + b.bytes")}
        FROM appended a CROSS JOIN LATERAL (
            SELECT coalesce(sum(c.bytes), 0) AS bytes FROM chunks c
            WHERE c.response_id = a.response_id AND c.first < a.first
        ) b JOIN unnest({numbered_arrays(*_LAST, first=len(CHUNKS) + len(_WORKER) + 1)})
            AS e({names(*_LAST)}) ON e.response_id = a.response_id
        WHERE r.id = e.response_id
    )
    SELECT response_id FROM appended
"""


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of a response, with its tool result, on its way into a conversation."""

    response_id: str
    id: str
    item: Json
    tool_result: Json | None

    @property
    def call_id(self) -> str | None:
        return call_id_of(self.item)

    @property
    def approval(self) -> str | None:
        return approval_of(self.item)


_ITEM: Columns[_Item] = Columns(
    Column("response_id", "text"),
    Column("id", "text"),
    Column("item", "json", to_json),
    Column("tool_result", "json", to_json),
    Column("call_id", "text"),
    Column("approval", "text"),
)

# A conversation keeps input and output even if the response is deleted. KEY SHARE tells whether it is being deleted:
# without it the foreign key would fail the whole batch. NOWAIT: other responses would wait with this one.
# The items come as parameters: Postgres cannot look into JSON with U+0000, which tools return and models write.
_TO_CONVERSATION = f"""
    INSERT INTO conversation_items (conversation_id, project, id, item, tool_results, call_id, approval, bytes)
    SELECT c.id, c.project, i.id, CAST(i.item AS json), CAST(i.tool_result AS json), i.call_id, i.approval,
        octet_length(i.item) + coalesce(octet_length(i.tool_result), 0)
    FROM unnest({numbered_arrays(_ITEM)}) WITH ORDINALITY AS i({_ITEM.names}, position)
    JOIN responses r ON r.id = i.response_id JOIN conversations c ON c.id = r.conversation_id
    WHERE r.status IN ('completed', 'incomplete')
    ORDER BY r.id, i.position
    FOR KEY SHARE OF c NOWAIT
"""


async def append(db: Database, entries: Sequence[Entry]) -> set[str]:
    """Commits the entries that are still their worker's, at most one per response; returns the responses' ids.

    A large entry alone is encoded beside the event loop, and takes a connection of the pool, as ends in conversations
    do: other batches go on.
    Raises StoreUnavailable: then all of them may have been committed, or none; repeating the call is safe. It may have
    to be repeated until the first call, whose connection broke, has ended in Postgres. Raises StoreLocked while another
    transaction holds a conversation, and ItemTaken: then none of them was committed.
    """
    alone = entries[0].size if len(entries) == 1 else 0
    to_conversation = [entry for entry in entries if entry.conversation_input is not None]
    (statement, parameters), items = await off_loop(
        lambda: (_statement(entries), _item_parameters(to_conversation)), alone
    )
    in_pool = is_large(alone) or to_conversation
    connecting = db.pooled_driver_connection() if in_pool else db.driver_connection()
    async with connecting as connection, connection.transaction() if to_conversation else nullcontext():
        try:
            appended = {row[0] for row in await connection.fetch(statement, *parameters)}
        except asyncpg.UniqueViolationError:
            raise StoreBusy("the same append is under way") from None
        if finished := [entry for entry in to_conversation if entry.chunk.response_id in appended]:
            if len(finished) < len(to_conversation):
                items = _item_parameters(finished)
            try:
                await connection.execute(_TO_CONVERSATION, *items)
            except asyncpg.UniqueViolationError:
                raise ItemTaken from None
    return appended


def _item_parameters(entries: Sequence[Entry]) -> list[list[Any]]:
    return _ITEM.parameters([item for entry in entries for item in _items(entry)])


def _statement(entries: Sequence[Entry]) -> tuple[str, list[list[Any]]]:
    """The statement that appends the entries, and its parameters."""
    parameters = [*CHUNKS.parameters([entry.chunk for entry in entries]), *_WORKER.parameters(entries)]
    ended = [(entry, entry.chunk, entry.ending) for entry in entries if entry.ending is not None]
    if not ended:
        return _APPEND, parameters
    last, chunks, endings = zip(*ended, strict=True)
    added = (group.parameters(rows) for group, rows in zip(_LAST, (endings, endings, chunks, last), strict=True))
    return _APPEND_AND_END, [*parameters, *chain.from_iterable(added)]


def _items(entry: Entry) -> list[_Item]:
    if (ending := entry.ending) is None:
        return []
    results = ending.tool_results or {}
    response_id = entry.chunk.response_id
    sent = [_Item(response_id, item["id"], item, None) for item in entry.conversation_input or ()]
    made = [_Item(response_id, item["id"], item, results.get(str(index))) for index, item in enumerate(ending.output)]
    return sent + made


_PAGE_CHUNKS = 512

# Reads only from the chunk that holds event `after` + 1. The log is contiguous, so earlier chunks do not matter. A
# response that ended while it was queued may lack its end: what that follows from is read, too.
_READ = text(
    """
    SELECT r.status, c.first, c.last, c.attempt, c.final, c.frames,
        CASE WHEN :whole THEN c.tokens END AS tokens, CASE WHEN :whole THEN c.steps END AS steps,
        c.input_tokens, c.cached_tokens, e.last AS end, l.lacks_end, CASE WHEN l.lacks_end THEN e.frames END AS opening,
        CASE WHEN l.lacks_end THEN r.error END AS error, r.model, r.created_at
    FROM responses r LEFT JOIN LATERAL (
        SELECT k.last, k.final, k.frames FROM chunks k WHERE k.response_id = r.id ORDER BY k.first DESC LIMIT 1
    ) e ON true CROSS JOIN LATERAL (
        SELECT r.finished_at IS NOT NULL AND r.attempt = 0 AND r.log <> 'deleted' AND NOT coalesce(e.final, false)
            AS lacks_end
    ) l LEFT JOIN LATERAL (
        SELECT s.*, sum(s.size) OVER (ORDER BY s.first) - s.size AS before FROM (
            SELECT k.* FROM chunks k WHERE k.response_id = r.id AND k.last > :after AND k.first >= coalesce((
                SELECT p.first FROM chunks p WHERE p.response_id = :id AND p.first <= :after + 1
                ORDER BY p.first DESC LIMIT 1
            ), 0)
            ORDER BY k.first LIMIT CAST(:chunks AS bigint)
        ) s
    ) c ON c.before = 0 OR c.before + c.size <= CAST(:bytes AS bigint)
    WHERE r.id = :id ORDER BY c.first
    """
)
_WHOLE = {"bytes": 2**40, "chunks": None, "whole": True}
_EVENTS = {"bytes": 2**40, "chunks": None, "whole": False}
_PAGE = {"bytes": LOG_PAGE_BYTES, "chunks": _PAGE_CHUNKS, "whole": False}
_SIZE = text("SELECT coalesce(sum(size), 0) AS bytes FROM chunks WHERE response_id = :id")


async def read_size(db: Database, response_id: str) -> int:
    """The bytes of all events in the log, without reading them."""
    [row] = await db.execute(_SIZE, {"id": response_id})
    return int(row.bytes)


async def read(db: Database, response_id: str, after: int = -1) -> LogSlice:
    """All chunks with events after number `after`, in order and cut to them, and the status of that moment."""
    return await _read(db, response_id, after, _WHOLE)


async def read_events(db: Database, response_id: str) -> tuple[Chunk, ...]:
    """All chunks, with their events alone."""
    return (await _read(db, response_id, -1, _EVENTS)).chunks


async def read_page(db: Database, response_id: str, after: int = -1) -> LogSlice:
    """`read` of the first LOG_PAGE_BYTES or so, and of one chunk at least: what a reader may hold while it sends.

    The chunks have their events alone: a reader needs neither tokens nor steps.
    """
    return await _read(db, response_id, after, _PAGE)


async def _read(db: Database, response_id: str, after: int, limits: Mapping[str, int | None]) -> LogSlice:
    rows = await db.execute(_READ, {"id": response_id, "after": after, **limits}, large=limits is not _PAGE)
    if not rows:
        return LogSlice((), None)
    chunks = tuple(_chunk(response_id, row).after(after) for row in rows if row.first is not None)
    has_more = bool(chunks) and chunks[-1].last < rows[0].end
    if rows[0].lacks_end and not has_more and (end := _unwritten_end(response_id, rows[0])).last > after:
        chunks = (*chunks, end.after(after))
    return LogSlice(chunks, Status(rows[0].status), has_more)


def _unwritten_end(response_id: str, row: Row[Any]) -> Chunk:
    """The last chunk of a response that ended while it was queued, which nobody has written (queued.py)."""
    first = 0 if row.end is None else row.end + 1
    try:
        *_, queued = frames.split(unpack_events(row.opening))
        (event,) = frames.decode(queued)
        stream = ResponseStream.waiting(event["response"], first)
    except Exception as error:
        with about(response_id):
            log.error("its opening events cannot be read: %s", type_and_places(error))
        brief = brief_object(row.model, response_id, int(row.created_at.timestamp()))
        stream = ResponseStream.without_log(brief, first)
    events = stream.cancel() if row.error is None else stream.fail(row.error)
    return Chunk(response_id, first, stream.next_sequence - 1, 0, (), frames.encode_all(events), final=True)


# Subqueries, not joins: each takes a step in an index, whatever Postgres believes of the tables.
_HAS_NEWS = text(
    """
    SELECT coalesce((SELECT r.status FROM responses r WHERE r.id = a.id), '') NOT IN ('queued', 'in_progress')
        OR (SELECT c.last FROM chunks c WHERE c.response_id = a.id ORDER BY c.first DESC LIMIT 1) > a.after AS news
    FROM unnest(CAST(:ids AS text[]), CAST(:after AS int[])) WITH ORDINALITY AS a(id, after, number) ORDER BY a.number
    """
)


async def have_news(db: Database, asked: Sequence[tuple[str, int]]) -> list[bool]:
    """For each response and number of an event: whether its log has more, or the response is final or gone."""
    ids, after = [response_id for response_id, _ in asked], [number for _, number in asked]
    return [bool(row.news) for row in await db.execute(_HAS_NEWS, {"ids": ids, "after": after})]


def _chunk(response_id: str, row: Row[Any]) -> Chunk:
    return Chunk(
        response_id=response_id,
        first=row.first,
        last=row.last,
        attempt=row.attempt,
        tokens=unpack_tokens(row.tokens or b""),
        frames=unpack_events(row.frames),
        final=row.final,
        steps=tuple(row.steps or ()),
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
    )
