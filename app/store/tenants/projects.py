"""Projects: whom a row belongs to, and what the operator permits them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Row, Text, bindparam, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.limits import CHARGED, TOKENS
from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import limits, projects

ALL, NOT = "*", "!"
EVERYTHING = frozenset({ALL})
_OPERATORS_LOCK = 0x10_9A_12  # an advisory lock; any unused number
# Built once, because every process asks for the projects that it serves every few seconds.
_OWN_LIMITS = select(limits.c.kind + ":" + limits.c.model).where(limits.c.project == projects.c.id).correlate(projects)
_IS_CHARGED = limits.c.kind.in_([kind.value for kind in CHARGED])
_RESERVED, _CHARGED = _OWN_LIMITS.where(~_IS_CHARGED), _OWN_LIMITS.where(_IS_CHARGED)
_TOKENS = _OWN_LIMITS.where(limits.c.kind.in_([kind.value for kind in TOKENS]))
_COLUMNS = (
    *projects.c,
    _RESERVED.exists().label("is_limited"),
    _TOKENS.exists().label("reserves_tokens"),
    func.array(_CHARGED.scalar_subquery()).label("charged"),
)
_BY_ID = select(*_COLUMNS).where(projects.c.id == func.any(bindparam("ids", type_=ARRAY(Text))))


@dataclass(frozen=True, slots=True)
class ProjectRow:
    """One project, as Postgres has it."""

    id: str
    name: str
    models: frozenset[str]
    """Names of the models that its requests may use; `*`: all, but for those whose name is there with a `!`."""
    tool_servers: frozenset[str]
    """The same of labels of MCP servers."""
    created_at: datetime
    archived_at: datetime | None
    top_tier: str = "priority"
    """The best service tier that its responses get."""
    weight: float = 1.0
    """Its share of every queue (dispatch.py)."""
    stored_bytes: int = 0
    """What its ended responses and its conversations occupy, some seconds ago."""
    conversation_days: int | None = None
    """A conversation that has not changed for so long is deleted; None: none is."""
    erase_at: datetime | None = None
    """When everything of it begins to be erased; None: it is not to be, or it is done."""
    erased_at: datetime | None = None
    is_limited: bool = False
    """Whether its responses reserve of limits."""
    reserves_tokens: bool = False
    """Whether they reserve tokens, too, and end at them."""
    charged: frozenset[str] = frozenset()
    """The limits that are charged before: `kind:model` each."""


def allowed(permitted: Collection[str], names: Iterable[str]) -> frozenset[str]:
    """Returns those of the names that a project may use whose list this is."""
    return frozenset(name for name in names if NOT + name not in permitted and (ALL in permitted or name in permitted))


def _row(row: Row[Any]) -> ProjectRow:
    """An array is a set of names."""
    values: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list) else value for name, value in row._mapping.items()
    }
    return ProjectRow(**values)


def _plain(value: Any) -> Any:
    """Names become an array."""
    return sorted(value) if isinstance(value, Collection) and not isinstance(value, str) else value


async def create(
    connection: AsyncConnection,
    project_id: str,
    name: str,
    models: Collection[str] = EVERYTHING,
    tool_servers: Collection[str] = EVERYTHING,
    top_tier: str = "default",
    weight: float = 1.0,
) -> ProjectRow:
    """Inserts a project, which has no limits yet."""
    values: dict[str, Any] = {"models": _plain(models), "tool_servers": _plain(tool_servers)}
    values |= {"top_tier": top_tier, "weight": weight}
    statement = (
        insert(projects).values(id=project_id, name=name, created_at=func.now(), **values).returning(*projects.c)
    )
    return _row((await connection.execute(statement)).one())


async def count(connection: AsyncConnection) -> int:
    """How many projects there are, archived ones included. Nobody adds one while `lock_operators` holds."""
    return (await connection.execute(select(func.count()).select_from(projects))).scalar_one()


async def lock_operators(connection: AsyncConnection) -> None:
    """Keeps other operators from any change until the transaction ends; every change begins with it.

    So nobody adds a project or an admin key meanwhile, and no entry of the audit log appears before one that others
    could read already: whoever exports the log misses none.
    """
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _OPERATORS_LOCK})


async def lock(connection: AsyncConnection, project_id: str) -> ProjectRow | None:
    """Returns the project, which stays as it is until the transaction ends; None: there is none."""
    statement = select(*_COLUMNS).where(projects.c.id == project_id).with_for_update(key_share=True, of=projects)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)


async def find(db: Database, ids: Collection[str]) -> dict[str, ProjectRow]:
    """The projects with these ids, archived ones included."""
    return {row.id: _row(row) for row in await db.execute(_BY_ID, {"ids": list(ids)})}


async def find_named(db: Database, named: str) -> list[str]:
    """Ids of the project with this id, or else of all with this name, archived ones included; up to 21."""
    found = select(projects.c.id).where((projects.c.id == named) | (projects.c.name == named)).limit(21)
    ids = [row.id for row in await db.execute(found)]
    return [named] if named in ids else sorted(ids)


async def find_all(db: Database) -> list[ProjectRow]:
    """All projects, the oldest first."""
    statement = select(*_COLUMNS).order_by(projects.c.created_at, projects.c.id)
    return [_row(row) for row in await db.execute(statement)]


async def find_page(db: Database, page: Page, *, archived: bool) -> tuple[list[ProjectRow], bool] | None:
    """A page of projects, and whether there are more; None: the cursor names none. `archived` includes those."""
    statement = select(*_COLUMNS) if archived else select(*_COLUMNS).where(projects.c.archived_at.is_(None))
    return await read_page(db, statement, (projects.c.created_at, projects.c.id), page, _row)


async def change(connection: AsyncConnection, project_id: str, values: Mapping[str, Any]) -> ProjectRow:
    """Sets columns of a project that is locked; a weight counts from the next response that is sent."""
    return await _update(connection, project_id, {name: _plain(value) for name, value in values.items()})


async def archive(connection: AsyncConnection, project_id: str) -> ProjectRow:
    """Archives the project, once: its keys are refused from then on."""
    return await _update(connection, project_id, {"archived_at": func.coalesce(projects.c.archived_at, func.now())})


async def erase_after(connection: AsyncConnection, project_id: str, days: int) -> ProjectRow:
    """Has everything of the project erased so many days from now."""
    return await _update(connection, project_id, {"erase_at": func.now() + func.make_interval(0, 0, 0, days)})


async def _update(connection: AsyncConnection, project_id: str, values: dict[str, Any]) -> ProjectRow:
    """The project exists: it is locked."""
    statement = update(projects).where(projects.c.id == project_id).values(**values).returning(*_COLUMNS)
    return _row((await connection.execute(statement)).one())


_NAMES = text("SELECT id, name FROM projects WHERE id = ANY(:ids)")


async def names(db: Database, ids: Collection[str]) -> dict[str, str]:
    """Of those of these ids that there are. Raises StoreUnavailable."""
    return {row.id: row.name for row in await db.execute(_NAMES, {"ids": list(ids)})} if ids else {}
