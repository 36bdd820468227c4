"""Webhook endpoints: where a project wants its events. Their secrets are sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.store.database import Database, one
from app.store.paging import Listing, Page


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint as its project sees it."""

    id: str
    project: str
    name: str
    url: str
    event_types: Sequence[str]
    secret_hint: str
    secret: str
    """Sealed, as all that signs."""
    old_secret: str | None
    """The one before, while it is active."""
    created_at: datetime
    updated_at: datetime
    failing_since: datetime | None
    """The endpoint's first failure since the last success."""
    disabled_at: datetime | None
    disabled_reason: str | None


SECRETS = "e.secret, CASE WHEN e.old_secret_until > now() THEN e.old_secret END AS old_secret"
_SHOWN = "id project name url event_types secret_hint created_at updated_at failing_since disabled_at disabled_reason"
_COLUMNS = f"{SECRETS}, {', '.join(f'e.{name}' for name in _SHOWN.split())}"
_OWN = "e.id = :id AND e.project = :project"

_INSERT = text(
    f"""
    INSERT INTO webhook_endpoints AS e (id, project, name, url, event_types, secret, secret_hint)
    SELECT :id, :project, :name, :url, CAST(:event_types AS text[]), :secret, :hint
    WHERE (SELECT count(*) FROM webhook_endpoints WHERE project = :project) < :most
    RETURNING {_COLUMNS}
    """
)
_FIND = text(f"SELECT {_COLUMNS} FROM webhook_endpoints e WHERE {_OWN}")
_LIST = Listing(f"SELECT {_COLUMNS} FROM webhook_endpoints e WHERE e.project = :project")
# What changes nothing is no change. An endpoint that is enabled again begins with a clean record.
_UPDATE = text(
    f"""
    UPDATE webhook_endpoints e SET name = n.name, url = n.url, event_types = n.event_types,
        disabled_at = CASE WHEN n.disabled THEN coalesce(e.disabled_at, now()) END,
        disabled_reason = CASE WHEN n.disabled THEN coalesce(e.disabled_reason, 'requested') END,
        failing_since = CASE WHEN n.disabled OR e.disabled_at IS NULL THEN e.failing_since END,
        updated_at = CASE WHEN (n.name, n.url, n.event_types, n.disabled)
            IS DISTINCT FROM (e.name, e.url, e.event_types, e.disabled_at IS NOT NULL) THEN now() ELSE e.updated_at END
    FROM (
        SELECT id, coalesce(CAST(:name AS text), name) AS name, coalesce(CAST(:url AS text), url) AS url,
            coalesce(CAST(:event_types AS text[]), event_types) AS event_types,
            coalesce(CAST(:disabled AS boolean), disabled_at IS NOT NULL) AS disabled
        FROM webhook_endpoints WHERE id = :id AND project = :project FOR NO KEY UPDATE
    ) n
    WHERE e.id = n.id RETURNING {_COLUMNS}
    """
)
_ROTATE = text(
    f"""
    UPDATE webhook_endpoints e SET secret = :secret, secret_hint = :hint, updated_at = now(),
        old_secret = CASE WHEN :keep_seconds > 0 THEN e.secret END,
        old_secret_until = CASE WHEN :keep_seconds > 0 THEN now() + make_interval(secs => :keep_seconds) END
    WHERE {_OWN} RETURNING {_COLUMNS}
    """
)
# Two statements: an attempt that is noted meanwhile locks its delivery, and then the endpoint.
_DELETE = text("DELETE FROM webhook_endpoints WHERE id = :id AND project = :project RETURNING id")
_DELETE_DELIVERIES = text("DELETE FROM webhook_deliveries WHERE endpoint = :id")
_ANY = text("SELECT EXISTS (SELECT FROM webhook_endpoints) AS found")


async def create(db: Database, values: Mapping[str, Any]) -> EndpointRow | None:
    """Inserts an endpoint; None: the project has `most` already."""
    return await one(EndpointRow, db, _INSERT, values)


async def find(db: Database, project: str, endpoint_id: str) -> EndpointRow | None:
    """The endpoint; None: the project has none with that id, here and below."""
    return await one(EndpointRow, db, _FIND, {"id": endpoint_id, "project": project})


async def find_page(db: Database, project: str, page: Page) -> tuple[list[EndpointRow], bool]:
    """A page of the project's endpoints, and whether there are more."""
    return await _LIST.read(db, page, EndpointRow, {"project": project})


async def update(db: Database, project: str, endpoint_id: str, changes: Mapping[str, Any]) -> EndpointRow | None:
    """Changes what is not None of `name`, `url`, `event_types` and `disabled`."""
    return await one(EndpointRow, db, _UPDATE, {"id": endpoint_id, "project": project, **changes})


async def rotate(
    db: Database, project: str, endpoint_id: str, secret: str, hint: str, keep_seconds: float
) -> EndpointRow | None:
    """Replaces its secret; the one before stays active for `keep_seconds`."""
    values = {"id": endpoint_id, "project": project, "secret": secret, "hint": hint, "keep_seconds": keep_seconds}
    return await one(EndpointRow, db, _ROTATE, values)


async def delete(db: Database, project: str, endpoint_id: str) -> bool:
    """Deletes an endpoint with its deliveries; returns whether there was one."""
    found = await db.execute(_DELETE, {"id": endpoint_id, "project": project})
    if found:
        await db.execute(_DELETE_DELIVERIES, {"id": endpoint_id}, waits=True)
    return bool(found)


async def any_exists(db: Database) -> bool:
    """Whether any project has an endpoint."""
    return bool((await db.execute(_ANY))[0].found)
