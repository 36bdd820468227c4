"""The ledger: what projects used, by key, model, tier, minute, and whether in batches.

The ending of a response notes its usage in the same transaction (`usage_entries`, by the trigger `responses_settle`).
Maintenance adds the notes to the ledger and deletes them in one statement, so each counts once, whatever crashes. A
reader sees both in one statement: its sum is that of all ended responses, at any time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.store.database import Database

_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_GROUPS = {
    "project_id": "u.project",
    "user_id": "k.service_account",
    "api_key_id": "nullif(u.key_id, '')",
    "model": "u.model",
    "service_tier": "u.tier",
    "batch": "u.batch",
}
"""What usage can be told apart by, and the expression for each."""

_KEY = "minute, project, key_id, model, tier, batch"
_ENTRY_KEY = "date_trunc('minute', at, 'UTC') AS minute, project, coalesce(key_id, '') AS key_id, model, tier, batch"

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
        FROM taken GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
        ON CONFLICT ({_KEY}) DO UPDATE SET requests = usage.requests + excluded.requests,
            {", ".join(f"{name} = usage.{name} + excluded.{name}" for name in _COUNTS)}
    )
    SELECT count(*) FROM taken
    """
)


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What usage is asked for: from `start` up to before `end`, both full minutes.

    An empty collection limits nothing.
    """

    start: datetime
    end: datetime
    unit: str
    """Of a bucket, by Postgres' names: `minute`, `hour` or `day` (UTC)."""
    groups: Collection[str] = ()
    """Keys of _GROUPS."""
    projects: Collection[str] = ()
    keys: Collection[str] = ()
    models: Collection[str] = ()
    accounts: Collection[str] = ()
    batch: bool | None = None
    """Of batches only, or of all else."""


@dataclass(frozen=True, slots=True)
class Total:
    """What one group used within one bucket."""

    start: datetime
    """Of the bucket; the first one begins with the filter's start."""
    group: dict[str, Any]
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


async def add_up(db: Database, limit: int) -> int:
    """Adds up to `limit` notes to the ledger; returns how many."""
    async with db.autocommit() as connection:
        return int((await connection.execute(_ADD_UP, {"limit": limit})).scalar_one())


async def read(db: Database, wanted: UsageFilter, limit: int) -> list[Total]:
    """Returns up to `limit` totals, in the order of their buckets. Buckets without usage have none.

    What maintenance has not added to the ledger yet is read in the same statement, so nothing counts twice.
    """
    groups = [name for name in _GROUPS if name in wanted.groups]
    columns = "".join(f", {_GROUPS[name]} AS {name}" for name in groups)
    places = ", ".join(str(place) for place in range(1, len(groups) + 2))
    parameters = {
        "start": wanted.start,
        "end": wanted.end,
        "unit": wanted.unit,
        "projects": list(wanted.projects),
        "keys": list(wanted.keys),
        "models": list(wanted.models),
        "accounts": list(wanted.accounts),
        "batch": wanted.batch,
        "limit": limit,
    }
    rows = await db.execute(_read_statement(columns, places), parameters)
    return [_total(row._mapping, groups) for row in rows]


def _read_statement(columns: str, places: str) -> Any:
    """The arguments are expressions of this module alone."""
    counts = ", ".join(_COUNTS)
    sums = ", ".join(f"CAST(sum(u.{name}) AS bigint) AS {name}" for name in ("requests", *_COUNTS))
    return text(
        f"""
        SELECT greatest(date_trunc(:unit, u.minute, 'UTC'), :start) AS bucket{columns}, {sums}
        FROM (
            SELECT {_KEY}, requests, {counts} FROM usage WHERE minute >= :start AND minute < :end
            UNION ALL
            SELECT {_ENTRY_KEY}, 1, {counts} FROM usage_entries WHERE at >= :start AND at < :end
        ) u LEFT JOIN api_keys k ON k.id = u.key_id
        WHERE (cardinality(CAST(:projects AS text[])) = 0 OR u.project = ANY(:projects))
            AND (cardinality(CAST(:keys AS text[])) = 0 OR u.key_id = ANY(:keys))
            AND (cardinality(CAST(:models AS text[])) = 0 OR u.model = ANY(:models))
            AND (cardinality(CAST(:accounts AS text[])) = 0 OR k.service_account = ANY(:accounts))
            AND u.batch = coalesce(CAST(:batch AS boolean), u.batch)
        GROUP BY {places} ORDER BY {places} LIMIT :limit
        """
    )


def _total(row: Any, groups: Collection[str]) -> Total:
    counts = {name: row[name] for name in ("requests", *_COUNTS)}
    return Total(row["bucket"], {name: row[name] for name in groups}, **counts)
