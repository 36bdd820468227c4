"""The ledger of usage (usage.py), added up by buckets of time and by what the reader wants to tell apart."""

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
}
"""What usage can be told apart by, and the expression for each."""


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


@dataclass(frozen=True, slots=True)
class Total:
    """What one group used within one bucket."""

    start: datetime
    """Of the bucket; the first one begins with the filter's start."""
    group: dict[str, str | None]
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


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
        "limit": limit,
    }
    async with db.autocommit() as connection:
        rows = await connection.execute(_statement(columns, places), parameters)
        return [_total(row._mapping, groups) for row in rows]


def _statement(columns: str, places: str) -> Any:
    """The arguments are expressions of this module alone."""
    counts = ", ".join(_COUNTS)
    sums = ", ".join(f"CAST(sum(u.{name}) AS bigint) AS {name}" for name in ("requests", *_COUNTS))
    return text(
        f"""
        SELECT greatest(date_trunc(:unit, u.minute, 'UTC'), :start) AS bucket{columns}, {sums}
        FROM (
            SELECT minute, project, key_id, model, tier, requests, {counts}
            FROM usage WHERE minute >= :start AND minute < :end
            UNION ALL
            SELECT date_trunc('minute', at, 'UTC'), project, coalesce(key_id, ''), model, tier, 1, {counts}
            FROM usage_entries WHERE at >= :start AND at < :end
        ) u LEFT JOIN api_keys k ON k.id = u.key_id
        WHERE (cardinality(CAST(:projects AS text[])) = 0 OR u.project = ANY(:projects))
            AND (cardinality(CAST(:keys AS text[])) = 0 OR u.key_id = ANY(:keys))
            AND (cardinality(CAST(:models AS text[])) = 0 OR u.model = ANY(:models))
            AND (cardinality(CAST(:accounts AS text[])) = 0 OR k.service_account = ANY(:accounts))
        GROUP BY {places} ORDER BY {places} LIMIT :limit
        """
    )


def _total(row: Any, groups: Collection[str]) -> Total:
    counts = {name: row[name] for name in ("requests", *_COUNTS)}
    return Total(row["bucket"], {name: row[name] for name in groups}, **counts)
