"""The ledger: what projects used, by key, model, tier, minute, and whether in batches.

The ending of a response notes its usage in the same transaction (`usage_entries`, by the trigger `responses_settle`).
Maintenance adds the notes to the ledger and deletes them in one statement, so each counts once, whatever crashes. A
reader sees both in one statement: its sum is that of all ended responses, at any time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.store.database import Database

_GROUPS = ("project_id", "user_id", "api_key_id", "model", "service_tier", "batch")
"""The columns of _READ that usage can be grouped by."""

# Rows of the ledger are locked in the order of their keys: two copies of maintenance do not wait for each other.
_ADD_UP = text(
    """
    WITH taken AS (
        DELETE FROM usage_entries WHERE id IN (
            SELECT id FROM usage_entries ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
        RETURNING *
    ), added AS (
        INSERT INTO usage (minute, project, key_id, model, tier, batch,
            requests, input_tokens, cached_tokens, output_tokens, reasoning_tokens)
        SELECT date_trunc('minute', at, 'UTC'), project, coalesce(key_id, ''), model, tier, batch,
            count(*), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens)
        FROM taken GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (minute, project, key_id, model, tier, batch) DO UPDATE SET
            requests = usage.requests + excluded.requests,
            input_tokens = usage.input_tokens + excluded.input_tokens,
            cached_tokens = usage.cached_tokens + excluded.cached_tokens,
            output_tokens = usage.output_tokens + excluded.output_tokens,
            reasoning_tokens = usage.reasoning_tokens + excluded.reasoning_tokens
    )
    SELECT count(*) FROM taken
    """
)
# A column that is not among the groups is NULL in each row. Notes that are not in the ledger yet are read with it, so
# nothing counts twice.
_READ = text(
    """
    SELECT greatest(date_trunc(:unit, u.minute, 'UTC'), :start) AS start,
        CASE WHEN 'project_id' = ANY(:groups) THEN u.project END AS project_id,
        CASE WHEN 'user_id' = ANY(:groups) THEN k.service_account END AS user_id,
        CASE WHEN 'api_key_id' = ANY(:groups) THEN nullif(u.key_id, '') END AS api_key_id,
        CASE WHEN 'model' = ANY(:groups) THEN u.model END AS model,
        CASE WHEN 'service_tier' = ANY(:groups) THEN u.tier END AS service_tier,
        CASE WHEN 'batch' = ANY(:groups) THEN u.batch END AS batch,
        CAST(sum(u.requests) AS bigint) AS requests, CAST(sum(u.input_tokens) AS bigint) AS input_tokens,
        CAST(sum(u.cached_tokens) AS bigint) AS cached_tokens, CAST(sum(u.output_tokens) AS bigint) AS output_tokens,
        CAST(sum(u.reasoning_tokens) AS bigint) AS reasoning_tokens
    FROM (
        SELECT minute, project, key_id, model, tier, batch,
            requests, input_tokens, cached_tokens, output_tokens, reasoning_tokens
        FROM usage WHERE minute >= :start AND minute < :end
        UNION ALL
        SELECT date_trunc('minute', at, 'UTC'), project, coalesce(key_id, ''), model, tier, batch,
            1, input_tokens, cached_tokens, output_tokens, reasoning_tokens
        FROM usage_entries WHERE at >= :start AND at < :end
    ) u LEFT JOIN api_keys k ON k.id = u.key_id
    WHERE (cardinality(CAST(:projects AS text[])) = 0 OR u.project = ANY(:projects))
        AND (cardinality(CAST(:keys AS text[])) = 0 OR u.key_id = ANY(:keys))
        AND (cardinality(CAST(:models AS text[])) = 0 OR u.model = ANY(:models))
        AND (cardinality(CAST(:accounts AS text[])) = 0 OR k.service_account = ANY(:accounts))
        AND u.batch = coalesce(CAST(:batch AS boolean), u.batch)
    GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7 LIMIT :limit
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
    """Length of a bucket, by Postgres' names: `minute`, `hour` or `day` (UTC)."""
    groups: Collection[str] = ()
    """Some of _GROUPS."""
    projects: Collection[str] = ()
    keys: Collection[str] = ()
    models: Collection[str] = ()
    accounts: Collection[str] = ()
    batch: bool | None = None
    """True: usage of batches alone. False: of all else. None: of both."""


@dataclass(frozen=True, slots=True)
class Total:
    """The usage of one group within one bucket."""

    start: datetime
    """Start of the bucket; the first one begins with the filter's start."""
    group: dict[str, Any]
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


async def add_up(db: Database, limit: int) -> int:
    """Adds up to `limit` notes to the ledger; returns how many."""
    return int((await db.execute(_ADD_UP, {"limit": limit}))[0][0])


async def read(db: Database, wanted: UsageFilter, limit: int) -> list[Total]:
    """Returns up to `limit` totals, in the order of their buckets. Buckets without usage have none."""
    totals = []
    for row in await db.execute(_READ, {**asdict(wanted), "limit": limit}):
        columns = row._asdict()
        groups = {name: columns.pop(name) for name in _GROUPS}
        totals.append(Total(group={name: it for name, it in groups.items() if name in wanted.groups}, **columns))
    return totals
