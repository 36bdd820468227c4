"""New responses: all that come while one insert is under way go into the next, in one statement and one commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson

from app.batching import Batcher
from app.store.database import Database, StoreUnavailable
from app.store.responses import get_by_key
from app.store.rows import NewResponse, ResponseRow, pack_tokens

LANE = "intake"
MAX_BATCH = 256
HEAVY_BYTES = 64 * 1024
"""A request of so many bytes counts for one more in a batch, so that a batch is never a gigabyte (Postgres' limit)."""

Row = tuple[Any, ...]

# For the driver itself (`Database.direct`). Their messages are sent right after: `sent_at` is now.
#
# In the order of their keys: two batches with the same keys in another order would wait for each other. Of a key that
# comes twice in a batch, one is inserted.
_INSERT = """
    WITH batch AS (
        SELECT * FROM unnest(
            $1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bool[], $7::bool[], $8::bool[], $9::text[],
            $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::float8[], $15::text[], $16::bytea[],
            $17::int[], $18::int[], $19::int[], $20::bool[], $21::bytea[], $22::bytea[]
        ) AS b(
            id, project, model, queue, priority, background, stream, store, request, previous_response_id,
            conversation_id, created_at, queue_deadline, run_seconds, idempotency_key, fingerprint, first, last,
            attempt, final, tokens, frames
        )
    ), created AS (
        INSERT INTO responses (
            id, project, model, queue, priority, status, background, stream, store, request, previous_response_id,
            conversation_id, created_at, queue_deadline, run_seconds, idempotency_key, fingerprint, sent_at, sends
        )
        SELECT
            id, project, model, queue, priority, 'queued', background, stream, store, CAST(request AS json),
            previous_response_id, conversation_id, created_at, queue_deadline, run_seconds, idempotency_key,
            fingerprint, now(), 1
        FROM batch ORDER BY project, idempotency_key
        ON CONFLICT (project, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id
    ), opened AS (
        INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames)
        SELECT id, first, last, attempt, final, tokens, frames FROM batch WHERE id IN (SELECT id FROM created)
    )
    SELECT id FROM created
"""


class Inserter:
    """Inserts responses as `queued`, with their opening events, committed together."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._batches = Batcher(self._insert, max_items=MAX_BATCH, weight=_weight, shared_errors=(StoreUnavailable,))

    async def create(self, new: NewResponse) -> ResponseRow | None:
        """Inserts it and returns None. Raises StoreUnavailable.

        Where the project has a response of that idempotency key already, nothing is inserted and that one is returned.
        """
        row = _row(new)
        while not await self._batches.submit((new, row)):
            assert new.idempotency is not None
            if (existing := await get_by_key(self._db, new.project, new.idempotency.key)) is not None:
                return existing  # else it was deleted in the meantime: the key is free
        return None

    async def close(self) -> None:
        await self._batches.close()

    async def _insert(self, batch: Sequence[tuple[NewResponse, Row]]) -> list[bool]:
        columns = zip(*(row for _, row in batch), strict=True)
        async with self._db.direct(LANE) as connection:
            inserted = {row[0] for row in await connection.fetch(_INSERT, *columns)}
        return [new.id in inserted for new, _ in batch]


def _weight(item: tuple[NewResponse, Row]) -> int:
    return 1 + len(item[1][_REQUEST]) // HEAVY_BYTES


_REQUEST = 8
"""Where `_row` has it."""


def _row(new: NewResponse) -> Row:
    """The parameters of `_INSERT`."""
    request, opening, idempotency = new.request, new.opening, new.idempotency
    return (
        new.id,
        new.project,
        new.model,
        new.queue,
        new.priority,
        request["background"],
        request["stream"],
        request["store"],
        orjson.dumps(request).decode(),
        request.get("previous_response_id"),
        (request.get("conversation") or {}).get("id"),
        new.created_at,
        None if new.queue_seconds is None else new.created_at + timedelta(seconds=new.queue_seconds),
        new.run_seconds,
        idempotency.key if idempotency else None,
        idempotency.fingerprint if idempotency else None,
        opening.first,
        opening.last,
        opening.attempt,
        opening.final,
        pack_tokens(opening.tokens),
        opening.frames,
    )
