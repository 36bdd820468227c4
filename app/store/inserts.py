"""Inserting new responses: those that come during one insert share the next one, in one statement and one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from app.batching import Batcher
from app.protocol.events.chunk import Chunk
from app.store.columns import Column, Columns, named_arrays, names, to_json
from app.store.database import Database, StoreUnavailable
from app.store.formats import FORMAT
from app.store.responses import get_by_key
from app.store.rows import CHUNK_COLUMNS, NewResponse, ResponseRow

MAX_BATCH = 256
HEAVY_BYTES = 64 * 1024
"""A request counts as one more row for every so many bytes: a batch must stay below Postgres' limit of 1 GiB."""
LARGE_WEIGHT = 8
"""Half a megabyte takes tens of milliseconds to be inserted."""


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

    @classmethod
    def of(cls, new: NewResponse) -> _Row:
        request, idempotency = new.request, new.idempotency
        return cls(
            id=new.id,
            project=new.project,
            model=new.model,
            queue=new.queue,
            priority=new.priority,
            background=request["background"],
            stream=request["stream"],
            store=request["store"],
            request=to_json(request) or "",
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
        )


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
)
_OPENING: Columns[Chunk] = Columns(*CHUNK_COLUMNS)

# `sent_at` is now, because the caller sends the messages right after.
#
# The order of the keys is that of every batch, so that two batches with the same keys do not wait for each other. If a
# key comes twice in a batch, one of the two is inserted.
_INSERT = text(
    f"""
    WITH batch AS (
        SELECT * FROM unnest({named_arrays(_ROW, _OPENING)}) AS b({names(_ROW, _OPENING)})
    ), created AS (
        INSERT INTO responses ({_ROW.names}, status, sent_at, sends)
        SELECT {_ROW.select("b")}, 'queued', now(), 1 FROM batch b ORDER BY project, idempotency_key
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id
    ), opened AS (
        INSERT INTO chunks ({_OPENING.names})
        SELECT {_OPENING.select("b")} FROM batch b WHERE id IN (SELECT id FROM created)
    )
    SELECT id FROM created
    """
)


class Inserter:
    """Inserts responses as `queued`, each with its opening events, committed together.

    Large ones are inserted one by one beside the others, which do not wait for them.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._batches = Batcher(self._insert, max_items=MAX_BATCH, weight=_weight, shared_errors=(StoreUnavailable,))
        self._large = Batcher(self._insert, max_items=1, shared_errors=(StoreUnavailable,))

    async def create(self, new: NewResponse) -> ResponseRow | None:
        """Inserts a response and returns None; the caller then sends its message. Raises StoreUnavailable.

        If the project has a response with the same idempotency key, returns that one, and inserts nothing.
        """
        row = _Row.of(new)
        batches = self._large if _weight((row, new.opening)) > LARGE_WEIGHT else self._batches
        while not await batches.submit((row, new.opening)):
            assert new.idempotency is not None
            if (existing := await get_by_key(self._db, new.project, new.idempotency.key)) is not None:
                return existing
            # The response with that key was deleted in the meantime, so the key is free.
        return None

    async def close(self) -> None:
        await self._batches.close()
        await self._large.close()

    async def _insert(self, batch: Sequence[tuple[_Row, Chunk]]) -> list[bool]:
        """Returns for each row whether it was inserted."""
        rows, openings = zip(*batch, strict=True)
        parameters = {**_ROW.named_parameters(rows), **_OPENING.named_parameters(openings)}
        async with self._db.autocommit() as connection:
            ids = set((await connection.execute(_INSERT, parameters)).scalars())
        return [row.id in ids for row in rows]


def _weight(item: tuple[_Row, Chunk]) -> int:
    row, opening = item
    return 1 + (len(row.request) + len(opening.frames)) // HEAVY_BYTES
