"""The audit log: what operators did, each entry in the transaction of what was done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.columns import to_json
from app.store.database import Database
from app.store.paging import Listing, Page

_ADD = text(
    """
    INSERT INTO audit_logs (id, effective_at, type, actor, project, resource, details, address, request_id)
    VALUES (:id, clock_timestamp(), :type, :actor, :project, :resource, CAST(:details AS json), :address, :request_id)
    """
)
_LIST = Listing(
    """
    SELECT a.id, a.effective_at, a.type, a.actor, a.project, a.resource, a.details, a.address, a.request_id,
        p.name AS project_name
    FROM audit_logs a LEFT JOIN projects p ON p.id = a.project
    """,
    """
    (cardinality(CAST(:types AS text[])) = 0 OR type = ANY(:types))
        AND (cardinality(CAST(:projects AS text[])) = 0 OR project = ANY(:projects))
        AND (cardinality(CAST(:resources AS text[])) = 0 OR resource = ANY(:resources))
        AND (cardinality(CAST(:actors AS text[])) = 0 AND NOT :from_command_line
            OR actor = ANY(:actors) OR :from_command_line AND actor IS NULL)
        AND effective_at >= coalesce(CAST(:since AS timestamptz), '-infinity')
        AND effective_at < coalesce(CAST(:until AS timestamptz), 'infinity')
    """,
    age="effective_at",
)


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry about to be inserted."""

    id: str
    type: str
    """A type of OpenAI's audit log, such as `project.created`."""
    actor: str | None
    """The id of the API key; None: no key was asked for, or `longhaul migrate`."""
    project: str | None
    resource: str
    """The id of what was changed."""
    details: Mapping[str, Any]
    address: str | None
    """IP address of the caller."""
    request_id: str | None


@dataclass(frozen=True, slots=True)
class AuditRow(NewEntry):
    """One entry, as Postgres has it."""

    effective_at: datetime
    project_name: str | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The filter of a list; an empty collection limits nothing."""

    types: Collection[str] = ()
    actors: Collection[str] = ()
    from_command_line: bool = False
    """Whether entries of changes without a key are listed beside those of `actors`."""
    projects: Collection[str] = ()
    resources: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    """Entries before this time only."""


async def add(connection: AsyncConnection, new: NewEntry) -> None:
    """Inserts an entry, in a transaction that began with `projects.lock_operators`."""
    await connection.execute(_ADD, {**asdict(new), "details": to_json(new.details)})


async def find_page(db: Database, only: AuditFilter, page: Page) -> tuple[list[AuditRow], bool]:
    """A page of entries, and whether there are more."""
    return await _LIST.read(db, page, AuditRow, asdict(only))
