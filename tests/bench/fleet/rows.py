"""Responses by the thousand: copies of one, made by SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import text

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.deltas import Finish, FinishReason, Text
from app.protocol.events.machine import ResponseStream
from app.protocol.response import response_object
from app.protocol.usage import Usage
from app.store.database import Database
from app.store.responses.logs import Entry
from app.store.rows import Ending
from tests.support.requests import stored_request
from tests.support.rows import queued

OPENED = 2
"""Events of a response that waits: created, queued."""

_COLUMNS = """
    SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
    WHERE table_name = :table AND column_name <> :own AND is_generated = 'NEVER' AND is_identity = 'NO'
"""
_COPY = """
    INSERT INTO {table} ({columns}, {own})
    SELECT {columns}, CAST(:prefix AS text) || lpad(i::text, 8, '0')
    FROM {table} t, generate_series(1, CAST(:count AS int)) i WHERE t.{own} = :template
"""
_CLAIM = """
    UPDATE responses SET status = 'in_progress', attempt = 1, worker = :worker, started_at = now(),
        sent_to = :worker, sent_at = now()
    WHERE id = ANY(CAST(:ids AS text[]))
"""
_FILL = """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    SELECT id, i, i, 1, false, '\\x01000000', CAST(:frames AS bytea), octet_length(CAST(:frames AS bytea))
    FROM unnest(CAST(:ids AS text[])) id, generate_series(2, CAST(:chunks AS int) + 1) i
"""
_END = """
    UPDATE responses SET status = 'completed', output = '[]', finished_at = now(), worker = NULL
    WHERE id = ANY(CAST(:ids AS text[]))
"""


async def make_queued(db: Database, count: int, prefix: str) -> list[str]:
    """So many responses as the API leaves them, with ids that begin with `prefix`."""
    template = await queued(db)
    async with db.begin() as connection:
        for table, own in (("responses", "id"), ("chunks", "response_id")):
            columns = (await connection.execute(text(_COLUMNS), {"table": table, "own": own})).scalar_one()
            copy = text(_COPY.format(table=table, own=own, columns=columns))
            await connection.execute(copy, {"prefix": prefix, "count": count, "template": template})
    await vacuum(db)
    return [f"{prefix}{number:08d}" for number in range(1, count + 1)]


async def make_running(db: Database, count: int, prefix: str, worker: str, *, noticed: bool = True) -> list[str]:
    """So many responses that `worker` has claimed; `noticed`: and Postgres' statistics know of it."""
    ids = await make_queued(db, count, prefix)
    async with db.begin() as connection:
        await connection.execute(text(_CLAIM), {"ids": ids, "worker": worker})
    if noticed:
        await vacuum(db)
    return ids


async def vacuum(db: Database) -> None:
    """What autovacuum would do sooner or later."""
    async with db.autocommit() as connection:
        await connection.execute(text("VACUUM (ANALYZE) chunks, responses"))


async def make_finished(db: Database, count: int, prefix: str, chunks: int) -> list[str]:
    """So many responses that have ended, each with so many chunks that are not merged yet."""
    ids = await make_running(db, count, prefix, "gone")
    async with db.begin() as connection:
        await connection.execute(text(_FILL), {"ids": ids, "chunks": chunks, "frames": SampleEvents().frame})
        await connection.execute(text(_END), {"ids": ids})
    return ids


class SampleEvents:
    """Real frames of a stream, made once."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        began = int(now.timestamp())
        stream = ResponseStream(response_object(stored_request(), response_id=f"resp_{'0' * 32}", created_at=began))
        stream.accept()
        stream.begin()
        stream.feed(Text("Once"))
        self.frame = frames.encode_all(stream.feed(Text(" upon")))
        self._last = frames.encode_all(stream.finish(Finish(FinishReason.STOP, Usage(1, 0, 2)), began))
        self._ending = Ending.of(stream.response, now)

    def entry(self, worker: str, response_id: str, number: int, *, final: bool = False) -> Entry:
        """One event, or the last ones, as number `number`."""
        data = self._last if final else self.frame
        chunk = Chunk(response_id, number, number, 1, (1,), data, final=final)
        return Entry(worker, chunk, self._ending if final else None)

    def entries(self, worker: str, ids: Sequence[str], number: int) -> list[Entry]:
        """The same of each of these."""
        return [self.entry(worker, response_id, number) for response_id in ids]
