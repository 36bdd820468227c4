"""The ledger: what projects used, by key, model, tier and minute.

The ending of a response notes its usage in the same transaction (`usage_entries`, by the trigger of migration 0009).
Maintenance adds the notes to the ledger and deletes them in one statement, so each counts once, whatever crashes. A
reader sees both in one statement: its sum is that of all ended responses, at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.store.database import Database

_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_KEY = "minute, project, key_id, model, tier"
_ENTRY_KEY = "date_trunc('minute', at, 'UTC') AS minute, project, coalesce(key_id, '') AS key_id, model, tier"

# Rows of the ledger are locked in the order of their keys: two copies of maintenance do not wait for each other.
_ADD_UP = text(
    f"""
    WITH taken AS (
        DELETE FROM usage_entries WHERE id IN (
            SELECT id FROM usage_entries ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
        RETURNING *
    ), added AS (
        INSERT INTO usage ({_KEY}, requests, {", ".join(_COUNTS)})
        SELECT {_ENTRY_KEY}, count(*), {", ".join(f"sum({name})" for name in _COUNTS)}
        FROM taken GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT ({_KEY}) DO UPDATE SET requests = usage.requests + excluded.requests,
            {", ".join(f"{name} = usage.{name} + excluded.{name}" for name in _COUNTS)}
    )
    SELECT count(*) FROM taken
    """
)
_READ = text(
    f"""
    SELECT {_KEY}, CAST(sum(requests) AS bigint) AS requests,
        {", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in _COUNTS)}
    FROM (
        SELECT {_KEY}, requests, {", ".join(_COUNTS)} FROM usage WHERE minute >= :start AND minute < :end
        UNION ALL
        SELECT {_ENTRY_KEY}, 1, {", ".join(_COUNTS)} FROM usage_entries WHERE at >= :start AND at < :end
    ) u
    WHERE CAST(:project AS text) IS NULL OR project = :project
    GROUP BY {_KEY} ORDER BY {_KEY}
    """
)
_FORGET = text("DELETE FROM usage WHERE minute < :before")


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What responses that ended within one minute used."""

    minute: datetime
    project: str
    key_id: str
    """Empty: no key was asked for."""
    model: str
    tier: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


async def add_up(db: Database, limit: int) -> int:
    """Adds up to `limit` notes to the ledger; returns how many."""
    async with db.autocommit() as connection:
        return int((await connection.execute(_ADD_UP, {"limit": limit})).scalar_one())


async def find(db: Database, start: datetime, end: datetime, project: str | None = None) -> list[UsageRow]:
    """The ledger from the minute `start` up to before the minute `end`, of a project or of all."""
    wanted: dict[str, Any] = {"start": start, "end": end, "project": project}
    async with db.autocommit() as connection:
        return [UsageRow(**row._mapping) for row in await connection.execute(_READ, wanted)]


async def forget(db: Database, before: datetime) -> None:
    """Deletes what is older."""
    async with db.autocommit() as connection:
        await connection.execute(_FORGET, {"before": before})
