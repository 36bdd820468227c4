"""Deliveries: one row for each event and endpoint. The triggers write them (migrations); this claims and notes them.

A claim is a lease: the row is due again when it ends, so what a process that died had claimed is sent a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.protocol.types import Json
from app.store.columns import to_json
from app.store.database import Database, one
from app.store.paging import Listing, Page
from app.store.webhooks.endpoints import SECRETS

ENDPOINT_AT_ONCE = 4
"""Deliveries that are under way to one endpoint; one at a time while it fails."""
MAX_ATTEMPTS = 20
"""Attempts that a delivery keeps, the last ones."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process is to make now."""

    endpoint: str
    event_id: str
    project: str
    body: str
    tries: int
    """This one included."""
    sent_at: datetime
    """Names the claim."""
    timestamp: float
    """Now by Postgres' clock, in epoch seconds."""
    url: str
    secret: str
    """Sealed."""
    old_secret: str | None
    """The one before, sealed, while it is active."""
    failing_seconds: float
    """Time since the endpoint's first failure after its last success."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The state of a delivery after an attempt."""

    status: str
    """`pending`, `delivered` or `failed`."""
    delay: float | None
    """Seconds until the next try; None: there is none."""
    disable: str | None
    """Why its endpoint is disabled; None: it is not."""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery as its project sees it."""

    id: str
    """The id of the delivery's event."""
    type: str
    object_id: str
    status: str
    created_at: datetime
    due_at: datetime | None
    ended_at: datetime | None
    tries: int
    attempts: Sequence[Json]


_COLUMNS = ", ".join(("d.event_id AS id", *(f"d.{name}" for name in DeliveryRow.__slots__[1:])))

_ROOM = f"""
    CASE WHEN e.failing_since IS NULL THEN {ENDPOINT_AT_ONCE} ELSE 1 END - (
        SELECT count(*) FROM webhook_deliveries u
        WHERE u.endpoint = e.id AND u.sent_at IS NOT NULL AND u.due_at > now()
    )"""
# Two statements: once an endpoint is locked nobody else claims for it, and the second one sees all that was claimed.
# The oldest delivery of each endpoint decides, so no endpoint waits behind the backlog of another one.
_LOCK_READY = text(
    f"""
    SELECT e.id FROM webhook_endpoints e CROSS JOIN LATERAL (
        SELECT d.due_at FROM webhook_deliveries d WHERE d.endpoint = e.id AND d.due_at IS NOT NULL
        ORDER BY d.due_at LIMIT 1
    ) first
    WHERE e.disabled_at IS NULL AND first.due_at <= now() AND {_ROOM} > 0
    ORDER BY first.due_at LIMIT :most FOR NO KEY UPDATE OF e SKIP LOCKED
    """
)
_CLAIM = text(
    f"""
    WITH ready AS MATERIALIZED (
        SELECT e.id, e.url, {SECRETS}, extract(epoch FROM now() - e.failing_since)::float8 AS failing_seconds,
            {_ROOM} AS room
        FROM webhook_endpoints e WHERE e.id = ANY(CAST(:ids AS text[]))
    ), chosen AS MATERIALIZED (
        SELECT r.*, n.event_id FROM ready r CROSS JOIN LATERAL (
            SELECT d.event_id, row_number() OVER () AS place FROM (
                SELECT d.event_id FROM webhook_deliveries d WHERE d.endpoint = r.id AND d.due_at <= now()
                ORDER BY d.due_at LIMIT greatest(r.room, 0) FOR UPDATE SKIP LOCKED
            ) d
        ) n
        ORDER BY n.place LIMIT :most
    )
    UPDATE webhook_deliveries d SET tries = d.tries + 1, sent_at = clock_timestamp(),
        due_at = now() + make_interval(secs => :lease_seconds)
    FROM chosen c WHERE d.endpoint = c.id AND d.event_id = c.event_id
    RETURNING d.endpoint, d.event_id, d.project, d.body, d.tries, d.sent_at, c.url, c.secret, c.old_secret,
        extract(epoch FROM clock_timestamp())::float8 AS timestamp, coalesce(c.failing_seconds, 0) AS failing_seconds
    """
)
# Nothing is noted by a claim that has ended, or that a replay has overtaken.
_NOTE = text(
    f"""
    WITH noted AS (
        UPDATE webhook_deliveries d SET status = :status, sent_at = NULL,
            due_at = now() + make_interval(secs => CAST(:delay AS float8)),
            ended_at = CASE WHEN CAST(:delay AS float8) IS NULL THEN now() END,
            attempts = CASE WHEN jsonb_array_length(d.attempts) >= {MAX_ATTEMPTS} THEN d.attempts - 0 ELSE d.attempts
                END || CAST(:attempt AS jsonb)
        WHERE d.endpoint = :endpoint AND d.event_id = :event_id AND d.sent_at = :sent_at
        RETURNING d.endpoint
    )
    UPDATE webhook_endpoints e SET
        failing_since = CASE WHEN :status <> 'delivered' THEN coalesce(e.failing_since, now()) END,
        disabled_reason = coalesce(e.disabled_reason, CAST(:disable AS text)),
        disabled_at = coalesce(e.disabled_at, CASE WHEN CAST(:disable AS text) IS NOT NULL THEN now() END)
    FROM noted n WHERE e.id = n.endpoint
        AND ((:status = 'delivered') = (e.failing_since IS NOT NULL) OR CAST(:disable AS text) IS NOT NULL)
    """
)
_OF_ENDPOINT = f"SELECT {_COLUMNS} FROM webhook_deliveries d WHERE d.endpoint = :endpoint AND d.project = :project"
_LIST = Listing(_OF_ENDPOINT, age="id")
_REPLAY = text(
    f"""
    UPDATE webhook_deliveries d SET status = 'pending', due_at = now(), sent_at = NULL, ended_at = NULL, tries = 0
    WHERE d.endpoint = :endpoint AND d.event_id = :event_id AND d.project = :project RETURNING {_COLUMNS}
    """
)
_DELETE_OLD = text(
    """
    DELETE FROM webhook_deliveries WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM webhook_deliveries
        WHERE created_at < :before AND (ended_at < :before OR created_at < :abandoned)
        ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED))
    """
)


async def claim(db: Database, most: int, lease_seconds: float) -> list[Claimed]:
    """Claims up to `most` deliveries that are due, for `lease_seconds`: the oldest of each endpoint, few at once."""
    async with db.begin() as connection:
        ids = list((await connection.execute(_LOCK_READY, {"most": most})).scalars())
        if not ids:
            return []
        wanted = {"ids": ids, "most": most, "lease_seconds": lease_seconds}
        return [Claimed(**row._mapping) for row in await connection.execute(_CLAIM, wanted)]


async def note(db: Database, of: Claimed, attempt: Json, noted: Noted) -> None:
    """Notes an attempt, unless the claim has ended, and what it says of the endpoint."""
    values: dict[str, Any] = {"endpoint": of.endpoint, "event_id": of.event_id, "sent_at": of.sent_at}
    values |= {"status": noted.status, "delay": noted.delay, "disable": noted.disable, "attempt": to_json(attempt)}
    await db.execute(_NOTE, values)


async def find_page(db: Database, project: str, endpoint: str, page: Page) -> tuple[list[DeliveryRow], bool]:
    """A page of the deliveries to an endpoint, and whether there are more."""
    return await _LIST.read(db, page, DeliveryRow, {"endpoint": endpoint, "project": project})


async def replay(db: Database, project: str, endpoint: str, event_id: str) -> DeliveryRow | None:
    """Makes a delivery due, as if it had never been tried; None: there is none."""
    wanted = {"endpoint": endpoint, "event_id": event_id, "project": project}
    return await one(DeliveryRow, db, _REPLAY, wanted)


async def delete_old(db: Database, before: datetime, abandoned: datetime, limit: int) -> int:
    """Deletes up to `limit` deliveries that ended before `before`, or were made before `abandoned`.

    Returns how many.
    """
    async with db.autocommit() as connection:
        values = {"before": before, "abandoned": abandoned, "limit": limit}
        return (await connection.execute(_DELETE_OLD, values)).rowcount
