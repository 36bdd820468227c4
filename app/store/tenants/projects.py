"""Projects: whom a row belongs to, and what the operator permits them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Row, Text, bindparam, exists, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import limits, projects

_OPERATORS_LOCK = 0x10_9A_12  # an advisory lock; any unused number
# Built once, because every process asks for the projects that it serves every few seconds.
_COLUMNS = (*projects.c, exists().where(limits.c.project == projects.c.id).label("is_limited"))
_BY_ID = select(*_COLUMNS).where(projects.c.id == func.any(bindparam("ids", type_=ARRAY(Text))))


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """One project, as Postgres has it."""

    id: str
    name: str
    models: frozenset[str] | None
    """Names of the models that its requests may use; None: all but `denied_models`."""
    tool_servers: frozenset[str] | None
    """Labels of the MCP servers that its requests may use; None: all."""
    created_at: datetime
    archived_at: datetime | None
    denied_models: frozenset[str] = frozenset()
    denied_tools: frozenset[str] = frozenset()
    """Kinds of hosted tool (`HostedToolKind.name`) that its requests may not use, whatever server runs them."""
    top_tier: str = "priority"
    """The best service tier that its responses get."""
    weight: float = 1.0
    """Its share of every queue (dispatch.py)."""
    is_limited: bool = False
    """Whether it has limits."""


def _row(row: Row[Any]) -> ProjectRow:
    return ProjectRow(
        id=row.id,
        name=row.name,
        models=_names(row.models),
        tool_servers=_names(row.tool_servers),
        denied_models=frozenset(row.denied_models),
        denied_tools=frozenset(row.denied_tools),
        top_tier=row.top_tier,
        weight=row.weight,
        is_limited=row.is_limited,
        created_at=row.created_at,
        archived_at=row.archived_at,
    )


def _names(found: list[str] | None) -> frozenset[str] | None:
    return None if found is None else frozenset(found)


def _plain(value: Any) -> Any:
    """Names become an array."""
    return sorted(value) if isinstance(value, Collection) and not isinstance(value, str) else value


async def create(
    connection: AsyncConnection,
    project_id: str,
    name: str,
    models: Collection[str] | None = None,
    tool_servers: Collection[str] | None = None,
    top_tier: str = "default",
    weight: float = 1.0,
) -> ProjectRow:
    """Inserts a project. None permits everything."""
    values: dict[str, Any] = {"models": _plain(models), "tool_servers": _plain(tool_servers)}
    values |= {"top_tier": top_tier, "weight": weight}
    statement = insert(projects).values(id=project_id, name=name, created_at=func.now(), **values).returning(*_COLUMNS)
    return _row((await connection.execute(statement)).one())


async def count(connection: AsyncConnection) -> int:
    """How many projects there are, archived ones included. Nobody adds one while `lock_operators` holds."""
    return (await connection.execute(select(func.count()).select_from(projects))).scalar_one()


async def lock_operators(connection: AsyncConnection) -> None:
    """Locks what belongs to no project, until the transaction ends: the operators' keys, and the list of projects."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _OPERATORS_LOCK})


async def lock(connection: AsyncConnection, project_id: str) -> ProjectRow | None:
    """Returns the project, which stays as it is until the transaction ends; None: there is none."""
    statement = select(*_COLUMNS).where(projects.c.id == project_id).with_for_update(key_share=True, of=projects)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)


async def find(db: Database, ids: Collection[str]) -> dict[str, ProjectRow]:
    """The projects with these ids, archived ones included."""
    async with db.autocommit() as connection:
        return {row.id: _row(row) for row in await connection.execute(_BY_ID, {"ids": list(ids)})}


async def find_all(db: Database) -> list[ProjectRow]:
    """All projects, the oldest first."""
    statement = select(*_COLUMNS).order_by(projects.c.created_at, projects.c.id)
    async with db.autocommit() as connection:
        return [_row(row) for row in await connection.execute(statement)]


async def find_page(db: Database, page: Page, *, archived: bool) -> tuple[list[ProjectRow], bool] | None:
    """A page of projects, and whether there are more; None: the cursor names none. `archived` includes those."""
    statement = select(*_COLUMNS) if archived else select(*_COLUMNS).where(projects.c.archived_at.is_(None))
    async with db.autocommit() as connection:
        found = await read_page(connection, statement, (projects.c.created_at, projects.c.id), page)
    return None if found is None else ([_row(row) for row in found.rows], found.has_more)


async def change(connection: AsyncConnection, project_id: str, values: Mapping[str, Any]) -> ProjectRow:
    """Sets columns of a project that is locked; a weight counts from the next response that is sent."""
    return await _update(connection, project_id, {name: _plain(value) for name, value in values.items()})


async def archive(connection: AsyncConnection, project_id: str) -> ProjectRow:
    """Archives the project, once: its keys are refused from then on."""
    return await _update(connection, project_id, {"archived_at": func.coalesce(projects.c.archived_at, func.now())})


async def _update(connection: AsyncConnection, project_id: str, values: dict[str, Any]) -> ProjectRow:
    """The project exists: it is locked."""
    statement = update(projects).where(projects.c.id == project_id).values(**values).returning(*_COLUMNS)
    return _row((await connection.execute(statement)).one())
