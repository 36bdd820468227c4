"""The log of each response: chunks, appended under a fence and read in order.

`append` is the heart of the second and third law: in one statement it locks the rows that are still
`in_progress` under the writer's attempt (FOR SHARE: without the lock an event can land after a reader
has seen the final row), inserts their chunks and, where a chunk is final, ends the response. What is
not among the ids that come back was cancelled or taken over: nothing of it was written.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Row, text

from app.protocol.chunk import Chunk, Reading
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


# A repeated append (the connection broke while the first was under way) finds its own chunk there, and
# takes it for appended; any other chunk in its place means that the entry is not appended.
_APPEND = text(
    """
    WITH batch AS (
        SELECT * FROM unnest(
            CAST(:ids AS text[]), CAST(:attempts AS int[]), CAST(:firsts AS int[]), CAST(:lasts AS int[]),
            CAST(:finals AS bool[]), CAST(:tokens AS bytea[]), CAST(:frames AS bytea[]), CAST(:workers AS text[])
        ) AS b(response_id, attempt, first, last, final, tokens, frames, worker)
    ), held AS (
        SELECT r.id FROM responses r JOIN batch b ON b.response_id = r.id AND b.attempt = r.attempt
            AND b.worker = r.worker
        WHERE r.status = 'in_progress' ORDER BY r.id FOR SHARE OF r
    ), appended AS (
        INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames)
        SELECT b.response_id, b.first, b.last, b.attempt, b.final, b.tokens, b.frames
        FROM batch b JOIN held h ON h.id = b.response_id
        ON CONFLICT (response_id, first) DO UPDATE SET attempt = excluded.attempt
            WHERE chunks.attempt = excluded.attempt AND chunks.frames = excluded.frames
        RETURNING response_id
    )
    SELECT response_id FROM appended
    """
)

_FINISH = text(
    """
    UPDATE responses r SET
        status = e.status, output = CAST(e.output AS json), usage = CAST(e.usage AS json),
        error = CAST(e.error AS json), incomplete_details = CAST(e.incomplete_details AS json),
        finished_at = e.finished_at, worker = NULL
    FROM unnest(
        CAST(:ids AS text[]), CAST(:statuses AS text[]), CAST(:outputs AS text[]), CAST(:usages AS text[]),
        CAST(:errors AS text[]), CAST(:details AS text[]), CAST(:finished AS timestamptz[])
    ) AS e(id, status, output, usage, error, incomplete_details, finished_at)
    WHERE r.id = e.id AND r.status = 'in_progress'
    """
)

# A conversation keeps what was asked and said, whatever becomes of the response. An item that is there stays.
# The lock is for a conversation that is being deleted: without it the foreign key would end all of the batch.
_TO_CONVERSATION = text(
    """
    INSERT INTO conversation_items (conversation_id, id, item)
    SELECT r.conversation_id, i.item ->> 'id', i.item
    FROM responses r JOIN conversations c ON c.id = r.conversation_id, LATERAL (
        SELECT item, place, 0 AS half FROM json_array_elements(r.request -> 'input') WITH ORDINALITY AS q(item, place)
        UNION ALL
        SELECT item, place, 1 FROM json_array_elements(r.output) WITH ORDINALITY AS a(item, place)
    ) i
    WHERE r.id = ANY(CAST(:ids AS text[])) AND r.status IN ('completed', 'incomplete')
    ORDER BY r.id, i.half, i.place
    FOR KEY SHARE OF c
    ON CONFLICT DO NOTHING
    """
)

# Only the chunks from the one that holds `after` + 1: the log is contiguous, so nothing else can matter.
_READ = text(
    """
    SELECT r.status, c.first, c.last, c.attempt, c.final, c.tokens, c.frames, c.compressed
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


def _columns(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    chunks = [entry.chunk for entry in entries]
    return {
        "ids": [chunk.response_id for chunk in chunks],
        "attempts": [chunk.attempt for chunk in chunks],
        "firsts": [chunk.first for chunk in chunks],
        "lasts": [chunk.last for chunk in chunks],
        "finals": [chunk.final for chunk in chunks],
        "tokens": [pack_tokens(chunk.tokens) for chunk in chunks],
        "frames": [chunk.frames for chunk in chunks],
        "workers": [entry.worker for entry in entries],
    }


def _ending_columns(endings: Sequence[tuple[str, Ending]]) -> dict[str, list[Any]]:
    return {
        "ids": [response_id for response_id, _ in endings],
        "statuses": [ending.status.value for _, ending in endings],
        "outputs": [_json(ending.output) for _, ending in endings],
        "usages": [_json(ending.usage) for _, ending in endings],
        "errors": [_json(ending.error) for _, ending in endings],
        "details": [_json(ending.incomplete_details) for _, ending in endings],
        "finished": [ending.finished_at for _, ending in endings],
    }


async def append(db: Database, entries: Sequence[Entry]) -> set[str]:
    """Commits the entries that are still their worker's, at most one per response; returns those ids.

    Raises StoreUnavailable: then all of them may have been committed, or none; repeating the call is safe.
    """
    columns = _columns(entries)
    if not any(entry.ending for entry in entries):
        async with db.autocommit() as connection:
            return set((await connection.execute(_APPEND, columns)).scalars())
    async with db.begin() as connection:
        appended = set((await connection.execute(_APPEND, columns)).scalars())
        endings = [(e.chunk.response_id, e.ending) for e in entries if e.ending and e.chunk.response_id in appended]
        if endings:
            await connection.execute(_FINISH, _ending_columns(endings))
            if said := [e.chunk.response_id for e in entries if e.ending and e.in_conversation]:
                await connection.execute(_TO_CONVERSATION, {"ids": said})
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
    )


async def read(db: Database, response_id: str, after: int = -1) -> Reading:
    """The chunks with events after number `after`, in order and cut to them, and the status of that moment."""
    async with db.autocommit() as connection:
        rows = (await connection.execute(_READ, {"id": response_id, "after": after})).all()
    if not rows:
        return Reading((), None)
    chunks = tuple(_chunk(response_id, row).after(after) for row in rows if row.first is not None)
    return Reading(chunks, Status(rows[0].status))


async def merge_finished(db: Database, before: datetime, limit: int = 100) -> int:
    """Merges the logs of up to `limit` responses that ended before then into one compressed row each.

    Token ids are dropped: nothing resumes a finished response. Readers see the same events before and after.
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
