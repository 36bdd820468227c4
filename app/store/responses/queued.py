"""Ending many queued responses at once.

Nobody writes their terminal events: these follow from the row and its opening events, which nobody changes, and whoever
reads the log gets them (logs.py). So nothing of a response is read, and all of them end in one statement.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.response import code_of, error_object
from app.protocol.status import Status
from app.protocol.types import Json
from app.sizes import WEIGHT_BYTES
from app.store.columns import to_json
from app.store.database import Database
from app.store.guards import LOG_STATE
from app.store.rows import Notice
from app.store.tables import RESPONSE_EVENT

# In a long request it takes long to look for secrets.
ENDS_AT_ONCE = f"""
    (r.status = 'queued' AND r.request_bytes <= {WEIGHT_BYTES}
    AND strpos(CAST(r.request AS text), '"secrets":{{"') = 0)"""
"""Whether the row `r` ends so: it is queued, and its request has no secrets, which it would lose at its end."""

# The rows are found by their keys alone and locked in the order of their ids, as in logs.py.
_END = text(
    f"""
    WITH locked AS MATERIALIZED (
        SELECT r.id FROM responses r WHERE r.id = ANY(CAST(:ids AS text[])) AND r.status = 'queued'
        ORDER BY r.id FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE responses r SET status = CAST(:status AS text), output = '[]', error = CAST(:error AS json),
        error_code = CAST(:error_code AS text), finished_at = now(), event_id = {RESPONSE_EVENT}, log_bytes = o.bytes,
        log = {LOG_STATE.format("o.bytes")}
    FROM locked l CROSS JOIN LATERAL (
        SELECT coalesce(sum(c.bytes), 0) AS bytes FROM chunks c WHERE c.response_id = l.id
    ) o
    WHERE r.id = l.id
    RETURNING r.id, r.stream OR NOT r.background AS is_followed, r.sent_at IS NOT NULL AS was_sent
    """
)


async def end(
    connection: AsyncConnection, ids: Sequence[str], status: Status, error: Json | None = None
) -> list[Notice]:
    """Cancels or fails those of the responses that are queued and that nobody else has locked; returns them.

    All of them were ones that end at once when they were read. `error` is that of FAILED ones.
    """
    if not ids:
        return []
    code = None if error is None else code_of(error)
    values = {"ids": ids, "status": status.value, "error": to_json(error), "error_code": code}
    ended = (await connection.execute(_END, values)).all()
    return [Notice(id_, status, None, is_followed, was_sent) for id_, is_followed, was_sent in ended]


async def fail(db: Database, ids: Sequence[str], code: str, message: str) -> list[Notice]:
    """Fails those of the responses that `end` would; returns them. Raises StoreUnavailable."""
    async with db.begin() as connection:
        return await end(connection, ids, Status.FAILED, error_object(code, message))
