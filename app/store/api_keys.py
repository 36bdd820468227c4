"""API keys: the hash of each, what it may do, and whether it still may."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ARRAY, Row, Select, bindparam, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.tables import api_keys, projects

_FIRST_KEY_LOCK = 0x10_9A_12  # an advisory lock, so that one process makes the first key; any unused number
_ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key about to be inserted."""

    id: str
    project: str | None
    name: str
    hash: bytes
    shown: str
    scopes: Collection[str]
    lifetime_seconds: float | None = None
    """None: the key does not expire."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key, as Postgres has it at the moment."""

    id: str
    project: str | None
    """None: it belongs to the operators, and to no project."""
    name: str
    hash: bytes
    shown: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    remaining_seconds: float | None
    """Until it expires, by Postgres' clock; None: it does not expire."""
    is_archived: bool
    """Whether its project is."""


_COLUMNS = (
    *api_keys.c,
    func.extract("epoch", api_keys.c.expires_at - func.now()).label("remaining_seconds"),
    projects.c.archived_at.is_not(None).label("is_archived"),
)
_KEYS: Select[Any] = select(*_COLUMNS).outerjoin_from(api_keys, projects, projects.c.id == api_keys.c.project)
# Built once: the first request of each key asks for it.
_BY_HASH = _KEYS.where(api_keys.c.hash == func.any(bindparam("hashes", type_=ARRAY(api_keys.c.hash.type))))


def _row(row: Row[Any]) -> KeyRow:
    left = row.remaining_seconds
    fields = {**row._mapping, "scopes": tuple(row.scopes), "remaining_seconds": None if left is None else float(left)}
    return KeyRow(**fields)


async def find(db: Database, hashes: Collection[bytes]) -> dict[bytes, KeyRow]:
    """The keys with these hashes, revoked and expired ones included."""
    async with db.autocommit() as connection:
        found = [_row(row) for row in await connection.execute(_BY_HASH, {"hashes": list(hashes)})]
    return {row.hash: row for row in found}


async def get(db: Database, key_id: str) -> KeyRow | None:
    async with db.autocommit() as connection:
        return await _one(connection, key_id)


async def find_of(db: Database, project: str | None) -> list[KeyRow]:
    """The keys of a project, or of the operators, the oldest first."""
    owned = api_keys.c.project.is_(None) if project is None else api_keys.c.project == project
    statement = _KEYS.where(owned).order_by(api_keys.c.created_at, api_keys.c.id)
    async with db.autocommit() as connection:
        return [_row(row) for row in await connection.execute(statement)]


async def find_all(db: Database) -> list[KeyRow]:
    """All keys, the oldest first."""
    async with db.autocommit() as connection:
        return [_row(row) for row in await connection.execute(_KEYS.order_by(api_keys.c.created_at, api_keys.c.id))]


async def create(db: Database, new: NewKey) -> KeyRow:
    """Inserts a key."""
    async with db.begin() as connection:
        return await _insert(connection, new)


async def create_first(db: Database, new: NewKey, keep: Callable[[], None]) -> bool:
    """Inserts an admin key unless there is one that works; returns whether it did.

    `keep` writes the secret where it is found again, before the key counts. One process at a time does all this.
    """
    works = or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > func.now())
    statement = select(api_keys.c.id).where(
        api_keys.c.scopes.contains([_ADMIN]), api_keys.c.revoked_at.is_(None), works
    )
    async with db.begin() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _FIRST_KEY_LOCK})
        if (await connection.execute(statement.limit(1))).one_or_none() is not None:
            return False
        await _insert(connection, new)
        keep()
    return True


async def revoke(db: Database, key_id: str) -> KeyRow | None:
    """Revokes a key, once. Returns None if there is none with that id."""
    revoked = func.coalesce(api_keys.c.revoked_at, func.now())
    async with db.begin() as connection:
        await connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=revoked))
        return await _one(connection, key_id)


async def replace(db: Database, key_id: str, new: NewKey, overlap_seconds: float) -> KeyRow:
    """Inserts `new`, and lets the old key expire after the overlap, or when it would anyway."""
    end = func.least(api_keys.c.expires_at, func.now() + timedelta(seconds=overlap_seconds))
    async with db.begin() as connection:
        await connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(expires_at=end))
        return await _insert(connection, new)


async def mark_used(db: Database, seconds_ago: Mapping[str, float]) -> None:
    """Notes when keys were used last (id -> seconds before now). An earlier note never replaces a later one."""
    statement = text(
        """
        UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, now() - make_interval(secs => u.seconds))
        FROM unnest(CAST(:ids AS text[]), CAST(:seconds AS float8[])) AS u(id, seconds) WHERE k.id = u.id
        """
    )
    async with db.autocommit() as connection:
        await connection.execute(statement, {"ids": list(seconds_ago), "seconds": list(seconds_ago.values())})


async def _insert(connection: AsyncConnection, new: NewKey) -> KeyRow:
    lifetime = new.lifetime_seconds
    await connection.execute(
        insert(api_keys).values(
            id=new.id,
            project=new.project,
            name=new.name,
            hash=new.hash,
            shown=new.shown,
            scopes=sorted(new.scopes),
            created_at=func.now(),
            expires_at=None if lifetime is None else func.now() + timedelta(seconds=lifetime),
        )
    )
    row = await _one(connection, new.id)
    assert row is not None
    return row


async def _one(connection: AsyncConnection, key_id: str) -> KeyRow | None:
    row = (await connection.execute(_KEYS.where(api_keys.c.id == key_id))).one_or_none()
    return None if row is None else _row(row)
