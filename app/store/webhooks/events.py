"""The events of a project, in an order in which nothing comes late.

An event's id begins with the transaction that committed it. Only events of transactions before the oldest one that is
still open are shown: whatever commits later has a larger id (docs/internals/decisions/events.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from app.store.database import Database
from app.store.tables import EVENT_PLACE

_HORIZON = EVENT_PLACE.format("pg_snapshot_xmin(pg_current_snapshot())")
_NEXT = EVENT_PLACE.format("pg_snapshot_xmax(pg_current_snapshot())")
_SHOWN = f"project = :project AND event_id > :after AND event_id < {_HORIZON}"
_READ = text(
    f"""
    SELECT e.* FROM (
        (SELECT event_id AS id, 'response.' || status AS type, finished_at AS at, id AS object_id FROM responses
        WHERE {_SHOWN} AND log <> 'deleted' ORDER BY event_id LIMIT :limit)
        UNION ALL
        (SELECT event_id, 'batch.' || status, coalesce(completed_at, failed_at, expired_at, cancelled_at), id
        FROM batches
        WHERE {_SHOWN} AND coalesce(completed_at, failed_at, expired_at, cancelled_at) > now()
            - make_interval(secs => :kept_seconds)
        ORDER BY event_id LIMIT :limit)
    ) e ORDER BY e.id LIMIT :limit
    """
)
_MAY_EXIST = text(f"SELECT :event_id < {_NEXT} AS found")


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event: a background response, or a batch, has ended."""

    id: str
    type: str
    at: datetime
    object_id: str


async def read(db: Database, project: str, after: str, limit: int, kept_seconds: float) -> list[EventRow]:
    """Up to `limit` of the project's events behind the id `after`: of responses whose log is kept, and of batches that
    ended within `kept_seconds`."""
    wanted = {"project": project, "after": after, "limit": limit, "kept_seconds": kept_seconds}
    return [EventRow(**row._mapping) for row in await db.execute(_READ, wanted)]


async def may_exist(db: Database, event_id: str) -> bool:
    """Whether the database has come so far. One that was restored may not have: then its next ids are smaller."""
    return bool((await db.execute(_MAY_EXIST, {"event_id": event_id}))[0].found)
