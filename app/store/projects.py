"""Projects: whom a row belongs to, and what the operator permits them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Row, Text, bindparam, exists, func, insert, select, update

from app.store.database import Database
from app.store.tables import limits, projects

# Built once, because every process asks for the projects that it serves every few seconds.
_COLUMNS = (*projects.c, exists().where(limits.c.project == projects.c.id).label("is_limited"))
_BY_ID = select(*_COLUMNS).where(projects.c.id == func.any(bindparam("ids", type_=ARRAY(Text))))


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """One project, as Postgres has it."""

    id: str
    name: str
    models: frozenset[str] | None
    """Names of the models that its requests may use; None: all."""
    tool_servers: frozenset[str] | None
    """Labels of the MCP servers that its requests may use; None: all."""
    created_at: datetime
    archived_at: datetime | None
    top_tier: str = "priority"
    """The best service tier that its responses get."""
    is_limited: bool = False
    """Whether it has limits."""


def _row(row: Row[Any]) -> ProjectRow:
    permitted = {"models": _names(row.models), "tool_servers": _names(row.tool_servers)}
    return ProjectRow(**{**row._mapping, **permitted})


def _names(found: list[str] | None) -> frozenset[str] | None:
    return None if found is None else frozenset(found)


def _array(names: Collection[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


async def create(
    db: Database,
    project_id: str,
    name: str,
    models: Collection[str] | None = None,
    tool_servers: Collection[str] | None = None,
    top_tier: str = "default",
) -> ProjectRow:
    """Inserts a project. None permits everything."""
    values = {"models": _array(models), "tool_servers": _array(tool_servers), "top_tier": top_tier}
    statement = insert(projects).values(id=project_id, name=name, created_at=func.now(), **values).returning(*_COLUMNS)
    async with db.autocommit() as connection:
        return _row((await connection.execute(statement)).one())


async def find(db: Database, ids: Collection[str]) -> dict[str, ProjectRow]:
    """The projects with these ids, archived ones included."""
    async with db.autocommit() as connection:
        return {row.id: _row(row) for row in await connection.execute(_BY_ID, {"ids": list(ids)})}


async def find_all(db: Database) -> list[ProjectRow]:
    """All projects, the oldest first."""
    statement = select(*_COLUMNS).order_by(projects.c.created_at, projects.c.id)
    async with db.autocommit() as connection:
        return [_row(row) for row in await connection.execute(statement)]


async def permit(
    db: Database,
    project_id: str,
    models: Collection[str] | None,
    tool_servers: Collection[str] | None,
    top_tier: str | None = None,
) -> ProjectRow | None:
    """Sets what the project's requests may use; None permits everything. Returns None if there is no such project.

    Without a `top_tier` that stays as it is.
    """
    values: dict[str, Any] = {"models": _array(models), "tool_servers": _array(tool_servers)}
    if top_tier is not None:
        values["top_tier"] = top_tier
    return await _update(db, project_id, values)


async def archive(db: Database, project_id: str) -> ProjectRow | None:
    """Archives the project, once: its keys are refused from then on. Returns None if there is no such project."""
    return await _update(db, project_id, {"archived_at": func.coalesce(projects.c.archived_at, func.now())})


async def _update(db: Database, project_id: str, values: dict[str, Any]) -> ProjectRow | None:
    statement = update(projects).where(projects.c.id == project_id).values(**values).returning(*_COLUMNS)
    async with db.autocommit() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)
