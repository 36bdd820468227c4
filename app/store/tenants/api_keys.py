"""API keys: the hash of each, what it may do, and whether it still may."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ARRAY, ColumnElement, Row, Select, bindparam, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import api_keys, projects

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
    service_account: str | None = None


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
    service_account: str | None = None
    """The one that the key belongs to."""
    lifetime_seconds: float | None = None
    """As it was made; None: it was to last. After a rotation it expires sooner."""

    @property
    def state(self) -> Literal["works", "revoked", "archived", "expired"]:
        """Whether the key works, or else the first reason why it does not."""
        if self.revoked_at is not None:
            return "revoked"
        if self.is_archived:
            return "archived"
        return "expired" if self.remaining_seconds is not None and self.remaining_seconds <= 0 else "works"


_COLUMNS = (
    *api_keys.c,
    func.extract("epoch", api_keys.c.expires_at - func.now()).label("remaining_seconds"),
    projects.c.archived_at.is_not(None).label("is_archived"),
)
_WORKS = (
    api_keys.c.revoked_at.is_(None),
    or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > func.now()),
)
_KEYS: Select[Any] = select(*_COLUMNS).outerjoin_from(api_keys, projects, projects.c.id == api_keys.c.project)
# Built once: the first request of each key asks for it.
_BY_HASH = _KEYS.where(api_keys.c.hash == func.any(bindparam("hashes", type_=ARRAY(api_keys.c.hash.type))))

# Whoever changes several keys locks them in the order of their ids. Two that did not would wait for each other.
_MARK_USED = text(
    """
    WITH used AS MATERIALIZED (
        SELECT k.id, u.seconds FROM api_keys k
        JOIN unnest(CAST(:ids AS text[]), CAST(:seconds AS float8[])) AS u(id, seconds) ON u.id = k.id
        ORDER BY k.id FOR NO KEY UPDATE OF k
    )
    UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, now() - make_interval(secs => u.seconds))
    FROM used u WHERE k.id = u.id
    """
)


def _row(row: Row[Any]) -> KeyRow:
    left = row.remaining_seconds
    fields = {**row._mapping, "scopes": tuple(row.scopes), "remaining_seconds": None if left is None else float(left)}
    return KeyRow(**fields)


async def find(db: Database, hashes: Collection[bytes]) -> dict[bytes, KeyRow]:
    """The keys with these hashes, revoked and expired ones included."""
    found = [_row(row) for row in await db.execute(_BY_HASH, {"hashes": list(hashes)})]
    return {row.hash: row for row in found}


async def get(connection: AsyncConnection, key_id: str) -> KeyRow | None:
    row = (await connection.execute(_KEYS.where(api_keys.c.id == key_id))).one_or_none()
    return None if row is None else _row(row)


async def get_by_hash(connection: AsyncConnection, hashed: bytes) -> KeyRow | None:
    row = (await connection.execute(_BY_HASH, {"hashes": [hashed]})).one_or_none()
    return None if row is None else _row(row)


async def find_page(db: Database, project: str | None, page: Page) -> tuple[list[KeyRow], bool] | None:
    """A page of keys of a project, or of the operators, and whether there are more; None: the cursor names none.

    Revoked keys are left out.
    """
    working, keys = _KEYS.where(api_keys.c.revoked_at.is_(None)), (api_keys.c.created_at, api_keys.c.id)
    return await read_page(db, working, keys, page, _row, [_of(project)])


async def count_working(connection: AsyncConnection, project: str | None) -> int:
    """How many keys of a project, or of the operators, work."""
    statement = select(func.count()).select_from(api_keys).where(_of(project), *_WORKS)
    return (await connection.execute(statement)).scalar_one()


async def find_of(db: Database, project: str | None) -> list[KeyRow]:
    """The keys of a project, or of the operators, the oldest first."""
    statement = _KEYS.where(_of(project)).order_by(api_keys.c.created_at, api_keys.c.id)
    return [_row(row) for row in await db.execute(statement)]


async def find_all(db: Database) -> list[KeyRow]:
    """All keys, the oldest first."""
    return [_row(row) for row in await db.execute(_KEYS.order_by(api_keys.c.created_at, api_keys.c.id))]


async def create(connection: AsyncConnection, new: NewKey) -> KeyRow:
    """Inserts a key."""
    lifetime = new.lifetime_seconds
    await connection.execute(
        insert(api_keys).values(
            id=new.id,
            project=new.project,
            service_account=new.service_account,
            name=new.name,
            hash=new.hash,
            shown=new.shown,
            scopes=sorted(new.scopes),
            created_at=func.now(),
            expires_at=None if lifetime is None else func.now() + timedelta(seconds=lifetime),
            lifetime_seconds=lifetime,
        )
    )
    row = await get(connection, new.id)
    assert row is not None
    return row


async def has_admin(connection: AsyncConnection) -> bool:
    """Whether an admin key works. What the operators have is locked (`projects.lock_operators`)."""
    statement = select(api_keys.c.id).where(api_keys.c.scopes.contains([_ADMIN]), *_WORKS)
    return (await connection.execute(statement.limit(1))).one_or_none() is not None


async def revoke(connection: AsyncConnection, key_id: str) -> None:
    """Revokes a key, once."""
    revoked = func.coalesce(api_keys.c.revoked_at, func.now())
    await connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=revoked))


async def change(
    connection: AsyncConnection, key_id: str, scopes: Collection[str] | None, lifetime_seconds: float | None
) -> None:
    """Sets the key's scopes, and how long it lives from now on; None leaves either as it is."""
    values: dict[str, Any] = {} if scopes is None else {"scopes": sorted(scopes)}
    if lifetime_seconds is not None:
        values["expires_at"] = func.now() + timedelta(seconds=lifetime_seconds)
        values["lifetime_seconds"] = func.extract("epoch", func.now() - api_keys.c.created_at) + lifetime_seconds
    await connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(values))


async def end_after(connection: AsyncConnection, key_id: str, seconds: float) -> None:
    """Lets the key expire after so many seconds, or when it would anyway."""
    end = func.least(api_keys.c.expires_at, func.now() + timedelta(seconds=seconds))
    await connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(expires_at=end))


async def mark_used(db: Database, seconds_ago: Mapping[str, float]) -> None:
    """Notes when keys were used last (id -> seconds before now). An earlier note never replaces a later one."""
    await db.execute(_MARK_USED, {"ids": list(seconds_ago), "seconds": list(seconds_ago.values())})


def _of(project: str | None) -> ColumnElement[bool]:
    return api_keys.c.project.is_(None) if project is None else api_keys.c.project == project


_NAMES = text("SELECT id, name FROM api_keys WHERE id = ANY(:ids)")


async def names(db: Database, ids: Collection[str]) -> dict[str, str]:
    """Of those of these ids that there are. Raises StoreUnavailable."""
    return {row.id: row.name for row in await db.execute(_NAMES, {"ids": list(ids)})} if ids else {}
