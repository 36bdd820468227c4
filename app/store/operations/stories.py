"""What a response's log says of its attempts, and its events without their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from app.store.database import Database


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """What one attempt has written into the log. 0: the API, when it accepted the response."""

    attempt: int
    first_event: int
    last_event: int
    flushes: int
    tokens: int
    """None are left of a log that was merged."""
    has_progressed: bool
    """Whether it has tokens or steps: a death of its worker was no crash then. Unknown of a log that was merged."""
    input_tokens: int
    cached_tokens: int


_ATTEMPTS = text(
    """
    SELECT attempt, min(first) AS first_event, max(last) AS last_event, count(*) AS flushes,
        CAST(coalesce(sum(octet_length(tokens)), 0) / 4 AS bigint) AS tokens,
        bool_or(length(tokens) > 0 OR steps IS NOT NULL) AS has_progressed,
        CAST(sum(input_tokens) AS bigint) AS input_tokens, CAST(sum(cached_tokens) AS bigint) AS cached_tokens
    FROM chunks WHERE response_id = :id GROUP BY attempt ORDER BY attempt
    """
)
_RETRIED_BY = text("SELECT id FROM responses WHERE retry_of = :id")


async def read_attempts(db: Database, response_id: str) -> Sequence[LoggedAttempt]:
    """What the log has of each attempt; a merged log counts with the last of each page."""
    return [LoggedAttempt(**row._mapping) for row in await db.execute(_ATTEMPTS, {"id": response_id})]


async def find_retry(db: Database, response_id: str) -> str | None:
    """The response that repeats this one's request."""
    rows = await db.execute(_RETRIED_BY, {"id": response_id})
    return rows[0].id if rows else None
