"""Projects: whom a row belongs to, and what the operator permits them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.limits import CHARGED, TOKENS
from app.store.database import Database, one
from app.store.paging import Listing, Page

ALL, NOT = "*", "!"
EVERYTHING = frozenset({ALL})
_OPERATORS_LOCK = 0x10_9A_12  # an advisory lock; any unused number

_CHARGED, _TOKENS = (", ".join(sorted(f"'{kind.value}'" for kind in kinds)) for kinds in (CHARGED, TOKENS))
_PROJECTS = rf"""
    SELECT p.id, p.name, p.models, p.tool_servers, p.created_at, p.archived_at, p.top_tier, p.weight, p.stored_bytes,
        p.conversation_days, p.erase_at, p.erased_at, l.is_limited, l.reserves_tokens, l.charged
    FROM projects p CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(kind NOT IN ({_CHARGED})), false) AS is_limited,
            coalesce(bool_or(kind IN ({_TOKENS})), false) AS reserves_tokens,
            coalesce(array_agg(kind || '\:' || model) FILTER (WHERE kind IN ({_CHARGED})), '{{}}') AS charged
        FROM limits WHERE project = p.id
    ) l
"""
_BY_ID = text(f"{_PROJECTS} WHERE p.id = ANY(:ids)")
_LOCK = text(f"{_PROJECTS} WHERE p.id = :id FOR NO KEY UPDATE OF p")
_LIST = Listing(_PROJECTS, "(archived_at IS NULL OR :archived)")
_NAMED = text("SELECT id FROM projects WHERE id = :named OR name = :named LIMIT 21")
_NAMES = text("SELECT id, name FROM projects WHERE id = ANY(:ids)")
_COUNT = text("SELECT count(*) FROM projects")
_LOCK_OPERATORS = text("SELECT pg_advisory_xact_lock(:key)")
_CREATE = text(
    """
    INSERT INTO projects (id, name, models, tool_servers, top_tier, weight, created_at)
    VALUES (:id, :name, :models, :tool_servers, :top_tier, :weight, now())
    """
)
_CHANGE = text(
    """
    UPDATE projects SET name = :name, models = :models, tool_servers = :tool_servers, top_tier = :top_tier,
        weight = :weight, conversation_days = :conversation_days
    WHERE id = :id
    """
)
_ARCHIVE = text("UPDATE projects SET archived_at = coalesce(archived_at, now()) WHERE id = :id")
_ERASE = text("UPDATE projects SET erase_at = now() + make_interval(days => :days) WHERE id = :id")


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
    """The project's share of every queue (dispatch.py)."""
    stored_bytes: int = 0
    """Bytes of the project's ended responses and conversations, some seconds ago."""
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


def _row(models: list[str], tool_servers: list[str], charged: list[str], **columns: Any) -> ProjectRow:
    return ProjectRow(
        models=frozenset(models), tool_servers=frozenset(tool_servers), charged=frozenset(charged), **columns
    )


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
    values: dict[str, Any] = {"name": name, "models": sorted(models), "tool_servers": sorted(tool_servers)}
    return await _done(connection, _CREATE, project_id, **values, top_tier=top_tier, weight=weight)


async def count(connection: AsyncConnection) -> int:
    """How many projects there are, archived ones included. Nobody adds one while `lock_operators` holds."""
    return int((await connection.execute(_COUNT)).scalar_one())


async def lock_operators(connection: AsyncConnection) -> None:
    """Keeps other operators from any change until the transaction ends; every change begins with it.

    So nobody adds a project or an admin key meanwhile, and no entry of the audit log appears before one that others
    could read already: whoever exports the log misses none.
    """
    await connection.execute(_LOCK_OPERATORS, {"key": _OPERATORS_LOCK})


async def lock(connection: AsyncConnection, project_id: str) -> ProjectRow | None:
    """Returns the project, which stays as it is until the transaction ends; None: there is none."""
    return await one(_row, connection, _LOCK, {"id": project_id})


async def find(db: Database, ids: Collection[str]) -> dict[str, ProjectRow]:
    """The projects with these ids, archived ones included."""
    return {row.id: _row(**row._mapping) for row in await db.execute(_BY_ID, {"ids": list(ids)})}


async def find_named(db: Database, named: str) -> list[str]:
    """Ids of the project with this id, or else of all with this name, archived ones included; up to 21."""
    ids = [row.id for row in await db.execute(_NAMED, {"named": named})]
    return [named] if named in ids else sorted(ids)


async def find_page(db: Database, page: Page, *, archived: bool) -> tuple[list[ProjectRow], bool]:
    """A page of projects, and whether there are more. `archived` includes those."""
    return await _LIST.read(db, page, _row, {"archived": archived})


async def change(connection: AsyncConnection, new: ProjectRow) -> ProjectRow:
    """Sets what operators may change of a locked project. A weight counts from the next response that is sent."""
    values = {name: getattr(new, name) for name in ("name", "top_tier", "weight", "conversation_days")}
    names = {"models": sorted(new.models), "tool_servers": sorted(new.tool_servers)}
    return await _done(connection, _CHANGE, new.id, **values, **names)


async def archive(connection: AsyncConnection, project_id: str) -> ProjectRow:
    """Archives the project, once: its keys are refused from then on."""
    return await _done(connection, _ARCHIVE, project_id)


async def erase_after(connection: AsyncConnection, project_id: str, days: int) -> ProjectRow:
    """Has everything of the project erased so many days from now."""
    return await _done(connection, _ERASE, project_id, days=days)


async def _done(connection: AsyncConnection, statement: TextClause, project_id: str, **values: Any) -> ProjectRow:
    """Makes or changes a project, which nobody else changes meanwhile, and returns how it is then."""
    await connection.execute(statement, {"id": project_id, **values})
    return _row(**(await connection.execute(_BY_ID, {"ids": [project_id]})).one()._mapping)


async def names(db: Database, ids: Collection[str]) -> dict[str, str]:
    """Id -> name, for the ids that there are. Raises StoreUnavailable."""
    return {row.id: row.name for row in await db.execute(_NAMES, {"ids": list(ids)})} if ids else {}
