"""The audit log: what operators did, each entry in the transaction of what was done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import audit_logs, projects


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry about to be inserted."""

    id: str
    type: str
    """A type of OpenAI's audit log, such as `project.created`."""
    actor: str | None
    """The id of the API key; None: a command on a machine of the operators."""
    project: str | None
    resource: str
    """The id of what was changed."""
    details: Mapping[str, Any]
    address: str | None = None
    """Of the caller."""
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One entry, as Postgres has it."""

    id: str
    effective_at: datetime
    type: str
    actor: str | None
    project: str | None
    resource: str
    details: dict[str, Any]
    address: str | None
    request_id: str | None
    project_name: str | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What a list is limited to; an empty collection limits nothing."""

    types: Collection[str] = ()
    actors: Collection[str] = ()
    from_command_line: bool = False
    """With `actors`: entries of the operators' commands, too."""
    projects: Collection[str] = ()
    resources: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    """Entries before this time only."""


async def add(connection: AsyncConnection, new: NewEntry) -> None:
    """Inserts an entry, in a transaction that began with `projects.lock_operators`."""
    await connection.execute(insert(audit_logs).values(**asdict(new), effective_at=func.clock_timestamp()))


async def find_page(db: Database, only: AuditFilter, page: Page) -> tuple[list[AuditRow], bool] | None:
    """A page of entries, and whether there are more; None: the cursor names none."""
    statement = select(audit_logs, projects.c.name.label("project_name")).outerjoin_from(
        audit_logs, projects, projects.c.id == audit_logs.c.project
    )
    statement = statement.where(*_conditions(only))
    return await read_page(db, statement, (audit_logs.c.effective_at, audit_logs.c.id), page, _row)


def _conditions(only: AuditFilter) -> list[Any]:
    table = audit_logs.c
    columns = ((table.type, only.types), (table.project, only.projects), (table.resource, only.resources))
    conditions: list[Any] = [column.in_(values) for column, values in columns if values]
    if only.actors or only.from_command_line:
        commands = [table.actor.is_(None)] if only.from_command_line else []
        conditions.append(or_(table.actor.in_(only.actors), *commands))
    if only.since is not None:
        conditions.append(table.effective_at >= only.since)
    if only.until is not None:
        conditions.append(table.effective_at < only.until)
    return conditions


def _row(row: Row[Any]) -> AuditRow:
    return AuditRow(**row._mapping)
