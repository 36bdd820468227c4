"""The log of each response: chunks, appended under a fence and read in order.

`append` is the heart of the second and third law: in one statement it locks the rows that are still
`in_progress` under the writer's attempt (FOR SHARE: without the lock an event can land after a reader
has seen the final row), inserts their chunks and, where a chunk is final, ends the response. What is
not among the ids that come back was cancelled or taken over: nothing of it was written.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Row, text

from app.protocol.events.chunk import Chunk, LogSlice
from app.protocol.status import Status
from app.store.database import Database
from app.store.rows import Ending, pack_tokens, unpack_tokens


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk that a worker appends; with an ending, the chunk is the response's last."""

    worker: str
    chunk: Chunk
    ending: Ending | None = None
    in_conversation: bool = False
    """Whether its items go into a conversation at its end."""


# What every token comes by is for the driver itself (`Database.direct`), with numbered parameters.
#
# A repeated append (the connection broke while the first was under way) finds its own chunk there, and
# takes it for appended; any other chunk in its place means that the entry is not appended.
#
# Rows are found by their key alone, and looked at once they are locked: asked for worker or status as well, Postgres
# takes a partial index where its statistics are of a time when hardly a response ran, and reads all that run.
_APPENDED = """
    WITH batch AS (
        SELECT * FROM unnest(
            $1::text[], $2::int[], $3::int[], $4::int[], $5::bool[], $6::bytea[], $7::bytea[], $8::text[], $9::text[]
        ) AS b(response_id, attempt, first, last, final, tokens, frames, steps, worker)
    ), locked AS MATERIALIZED (
        SELECT r.id, r.status, r.attempt, r.worker FROM responses r JOIN batch b ON b.response_id = r.id
        ORDER BY r.id FOR SHARE OF r
    ), held AS (
        SELECT l.id FROM locked l JOIN batch b ON b.response_id = l.id AND b.attempt = l.attempt
            AND b.worker = l.worker
        WHERE l.status = 'in_progress'
    ), appended AS (
        INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, steps)
        SELECT b.response_id, b.first, b.last, b.attempt, b.final, b.tokens, b.frames, CAST(b.steps AS json)
        FROM batch b JOIN held h ON h.id = b.response_id
        ON CONFLICT (response_id, first) DO UPDATE SET attempt = excluded.attempt
            WHERE chunks.attempt = excluded.attempt AND chunks.frames = excluded.frames
        RETURNING response_id
    )"""

_APPEND = f"{_APPENDED} SELECT response_id FROM appended"

# The rows of those that end in this batch, in the same statement: one round trip, one commit.
_APPEND_AND_END = f"""{_APPENDED}, ended AS (
        UPDATE responses r SET
            status = e.status, output = CAST(e.output AS json), tool_results = CAST(e.tool_results AS json),
            messages = CAST(e.messages AS json), usage = CAST(e.usage AS json), error = CAST(e.error AS json),
            incomplete_details = CAST(e.incomplete_details AS json), finished_at = e.finished_at, worker = NULL
        FROM appended a JOIN unnest(
            $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::timestamptz[],
            $17::text[], $18::text[]
        ) AS e(id, status, output, usage, error, incomplete_details, finished_at, tool_results, messages)
            ON e.id = a.response_id
        WHERE r.id = e.id
    )
    SELECT response_id FROM appended
"""

# A conversation keeps what was asked and said, whatever becomes of the response. An item that is there stays.
# The lock is for a conversation that is being deleted: without it the foreign key would end all of the batch.
# What was said comes as parameters: Postgres cannot look into JSON that holds U+0000, which a model may well say.
_TO_CONVERSATION = """
    INSERT INTO conversation_items (conversation_id, id, item, tool_results)
    SELECT r.conversation_id, i.id, i.item, i.tool_results
    FROM responses r JOIN conversations c ON c.id = r.conversation_id, LATERAL (
        SELECT item ->> 'id' AS id, item, CAST(NULL AS json) AS tool_results, place, 0 AS half
        FROM json_array_elements(r.request -> 'input') WITH ORDINALITY AS q(item, place)
        UNION ALL
        SELECT a.id, CAST(a.item AS json), CAST(a.tool_results AS json), a.place, 1
        FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY
            AS a(response, id, item, tool_results, place)
        WHERE a.response = r.id
    ) i
    WHERE r.id = ANY($1::text[]) AND r.status IN ('completed', 'incomplete')
    ORDER BY r.id, i.half, i.place
    FOR KEY SHARE OF c
    ON CONFLICT DO NOTHING
"""

# Only the chunks from the one that holds `after` + 1: the log is contiguous, so nothing else can matter.
_READ = text(
    """
    SELECT r.status, c.first, c.last, c.attempt, c.final, c.tokens, c.frames, c.compressed, c.steps
    FROM responses r LEFT JOIN chunks c ON c.response_id = r.id AND c.last > :after AND c.first >= coalesce((
        SELECT p.first FROM chunks p WHERE p.response_id = :id AND p.first <= :after + 1 ORDER BY p.first DESC LIMIT 1
    ), 0)
    WHERE r.id = :id ORDER BY c.first
    """
)

_MERGEABLE = text(
    """
    SELECT id FROM responses WHERE finished_at < :before AND log = 'live'
    ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED
    """
)


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _columns(entries: Sequence[Entry]) -> tuple[list[Any], ...]:
    """The parameters of `_APPEND`."""
    chunks = [entry.chunk for entry in entries]
    return (
        [chunk.response_id for chunk in chunks],
        [chunk.attempt for chunk in chunks],
        [chunk.first for chunk in chunks],
        [chunk.last for chunk in chunks],
        [chunk.final for chunk in chunks],
        [pack_tokens(chunk.tokens) for chunk in chunks],
        [chunk.frames for chunk in chunks],
        [_json(chunk.steps or None) for chunk in chunks],
        [entry.worker for entry in entries],
    )


def _endings(entries: Sequence[Entry]) -> list[tuple[str, Ending]]:
    return [(entry.chunk.response_id, entry.ending) for entry in entries if entry.ending is not None]


def _ending_columns(entries: Sequence[Entry]) -> tuple[list[Any], ...]:
    """The parameters that `_APPEND_AND_END` has beyond those of `_APPEND`."""
    endings = [ending for _, ending in _endings(entries)]
    return (
        [response_id for response_id, _ in _endings(entries)],
        [ending.status.value for ending in endings],
        [_json(ending.output) for ending in endings],
        [_json(ending.usage) for ending in endings],
        [_json(ending.error) for ending in endings],
        [_json(ending.incomplete_details) for ending in endings],
        [ending.finished_at for ending in endings],
        [_json(ending.tool_results) for ending in endings],
        [_json(ending.messages) for ending in endings],
    )


def _said_columns(entries: Sequence[Entry]) -> tuple[list[Any], ...]:
    """The parameters of `_TO_CONVERSATION`."""
    said = [
        (response_id, item["id"], _json(item), _json((ending.tool_results or {}).get(str(index))))
        for response_id, ending in _endings(entries)
        for index, item in enumerate(ending.output)
    ]
    columns = zip(*said, strict=True) if said else ((), (), (), ())
    return ([entry.chunk.response_id for entry in entries], *map(list, columns))


async def append(db: Database, entries: Sequence[Entry]) -> set[str]:
    """Commits the entries that are still their worker's, at most one per response; returns those ids.

    Raises StoreUnavailable: then all of them may have been committed, or none; repeating the call is safe.
    """
    columns, to_conversation = _columns(entries), [entry for entry in entries if entry.in_conversation]
    async with db.direct() as connection, connection.transaction() if to_conversation else nullcontext():
        if any(entry.ending for entry in entries):
            rows = await connection.fetch(_APPEND_AND_END, *columns, *_ending_columns(entries))
        else:
            rows = await connection.fetch(_APPEND, *columns)
        appended = {row[0] for row in rows}
        if said := [entry for entry in to_conversation if entry.chunk.response_id in appended]:
            await connection.execute(_TO_CONVERSATION, *_said_columns(said))
    return appended


def _chunk(response_id: str, row: Row[Any]) -> Chunk:
    return Chunk(
        response_id=response_id,
        first=row.first,
        last=row.last,
        attempt=row.attempt,
        tokens=unpack_tokens(row.tokens),
        frames=zlib.decompress(row.frames) if row.compressed else row.frames,
        final=row.final,
        steps=tuple(row.steps or ()),
    )


async def read(db: Database, response_id: str, after: int = -1) -> LogSlice:
    """The chunks with events after number `after`, in order and cut to them, and the status of that moment."""
    async with db.autocommit() as connection:
        rows = (await connection.execute(_READ, {"id": response_id, "after": after})).all()
    if not rows:
        return LogSlice((), None)
    chunks = tuple(_chunk(response_id, row).after(after) for row in rows if row.first is not None)
    return LogSlice(chunks, Status(rows[0].status))


async def merge_finished(db: Database, before: datetime, limit: int = 100) -> int:
    """Merges the logs of up to `limit` responses that ended before then into one compressed row each.

    Token ids and steps are dropped: nothing resumes a finished response. Readers see the same events before and after.
    """
    async with db.begin() as connection:
        ids = list((await connection.execute(_MERGEABLE, {"before": before, "limit": limit})).scalars())
        for response_id in ids:
            rows = (
                await connection.execute(
                    text(
                        "DELETE FROM chunks WHERE response_id = :id RETURNING first, last, attempt, frames, compressed"
                    ),
                    {"id": response_id},
                )
            ).all()
            if rows:
                await connection.execute(_MERGED, _merged(response_id, rows))
        await connection.execute(
            text("UPDATE responses SET log = 'merged' WHERE id = ANY(CAST(:ids AS text[]))"), {"ids": ids}
        )
    return len(ids)


_MERGED = text(
    """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, compressed)
    VALUES (:id, :first, :last, :attempt, true, '', :frames, true)
    """
)


def _merged(response_id: str, rows: Sequence[Row[Any]]) -> dict[str, Any]:
    ordered = sorted(rows, key=lambda row: row.first)
    frames = b"".join(zlib.decompress(row.frames) if row.compressed else row.frames for row in ordered)
    return {
        "id": response_id,
        "first": ordered[0].first,
        "last": ordered[-1].last,
        "attempt": ordered[-1].attempt,
        "frames": zlib.compress(frames),
    }


async def delete_events(db: Database, before: datetime, limit: int = 1000) -> int:
    """Deletes the merged events of up to `limit` responses that ended before then; returns how many."""
    async with db.begin() as connection:
        result = await connection.execute(
            text(
                """
                UPDATE responses SET log = 'deleted' WHERE id IN (
                    SELECT id FROM responses WHERE log = 'merged' AND finished_at < :before
                    ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED)
                RETURNING id
                """
            ),
            {"before": before, "limit": limit},
        )
        ids = list(result.scalars())
        await connection.execute(text("DELETE FROM chunks WHERE response_id = ANY(CAST(:ids AS text[]))"), {"ids": ids})
    return len(ids)
