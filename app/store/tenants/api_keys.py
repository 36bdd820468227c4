"""API keys: the hash of each, what it may do, and whether it still may."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database, one
from app.store.paging import Listing, Page


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key about to be inserted."""

    id: str
    project: str | None
    """The key's project; None: it belongs to the operators."""
    name: str
    hash: bytes
    shown: str
    scopes: Sequence[str]
    lifetime_seconds: float | None
    """Seconds from its making until it expires; None: it was to last. After a rotation it expires sooner."""
    service_account: str | None
    """The one that the key belongs to."""


@dataclass(frozen=True, slots=True)
class KeyRow(NewKey):
    """One key, as Postgres has it at the moment."""

    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    remaining_seconds: float | None
    """Seconds until the key expires, by Postgres' clock; None: it does not expire."""
    is_archived: bool
    """Whether its project is."""

    @property
    def state(self) -> Literal["works", "revoked", "archived", "expired"]:
        """Whether the key works, or else the first reason why it does not."""
        if self.revoked_at is not None:
            return "revoked"
        if self.is_archived:
            return "archived"
        return "expired" if self.remaining_seconds is not None and self.remaining_seconds <= 0 else "works"


_KEYS = """
    SELECT k.id, k.project, k.name, k.hash, k.shown, k.scopes, k.created_at, k.expires_at, k.last_used_at,
        k.revoked_at, CAST(extract(epoch FROM k.expires_at - now()) AS float8) AS remaining_seconds,
        p.archived_at IS NOT NULL AS is_archived, k.service_account, k.lifetime_seconds
    FROM api_keys k LEFT JOIN projects p ON p.id = k.project
"""
_IS_OF = "(k.project = :project OR CAST(:project AS text) IS NULL AND k.project IS NULL)"
"""The project's; without one those of the operators."""
_WORKS = "k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())"
_BY_HASH = text(f"{_KEYS} WHERE k.hash = ANY(:hashes)")
_BY_ID = text(f"{_KEYS} WHERE k.id = :id")
_LIST = Listing(f"{_KEYS} WHERE {_IS_OF}", "revoked_at IS NULL")
_COUNT_WORKING = text(f"SELECT count(*) FROM api_keys k WHERE {_IS_OF} AND {_WORKS}")
_WORKING_ADMIN = text(f"SELECT id FROM api_keys k WHERE scopes @> ARRAY['admin'] AND {_WORKS} LIMIT 1")
_NAMES = text("SELECT id, name FROM api_keys WHERE id = ANY(:ids)")
_CREATE = text(
    """
    INSERT INTO api_keys (id, project, service_account, name, hash, shown, scopes, created_at, expires_at,
        lifetime_seconds)
    VALUES (:id, :project, :service_account, :name, :hash, :shown, :scopes, now(),
        now() + make_interval(secs => :lifetime_seconds), :lifetime_seconds)
    """
)
_REVOKE = text("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = :id")
_CHANGE = text(
    """
    UPDATE api_keys SET scopes = coalesce(:scopes, scopes),
        expires_at = coalesce(now() + make_interval(secs => :seconds), expires_at),
        lifetime_seconds = coalesce(extract(epoch FROM now() - created_at) + :seconds, lifetime_seconds)
    WHERE id = :id
    """
)
_END_AFTER = text(
    "UPDATE api_keys SET expires_at = least(expires_at, now() + make_interval(secs => :seconds)) WHERE id = :id"
)
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


async def find(db: Database, hashes: Collection[bytes]) -> dict[bytes, KeyRow]:
    """The keys with these hashes, revoked and expired ones included."""
    found = [KeyRow(**row._mapping) for row in await db.execute(_BY_HASH, {"hashes": list(hashes)})]
    return {row.hash: row for row in found}


async def get(connection: AsyncConnection, key_id: str) -> KeyRow | None:
    return await one(KeyRow, connection, _BY_ID, {"id": key_id})


async def get_by_hash(connection: AsyncConnection, hashed: bytes) -> KeyRow | None:
    return await one(KeyRow, connection, _BY_HASH, {"hashes": [hashed]})


async def find_page(db: Database, project: str | None, page: Page) -> tuple[list[KeyRow], bool]:
    """A page of keys of a project, or of the operators, and whether there are more. Revoked keys are left out."""
    return await _LIST.read(db, page, KeyRow, {"project": project})


async def count_working(connection: AsyncConnection, project: str | None) -> int:
    """How many keys of a project, or of the operators, work."""
    return int((await connection.execute(_COUNT_WORKING, {"project": project})).scalar_one())


async def create(connection: AsyncConnection, new: NewKey) -> KeyRow:
    """Inserts a key."""
    await connection.execute(_CREATE, {**asdict(new), "scopes": sorted(new.scopes)})
    row = await get(connection, new.id)
    assert row is not None
    return row


async def has_admin(connection: AsyncConnection) -> bool:
    """Whether an admin key works. What the operators have is locked (`projects.lock_operators`)."""
    return (await connection.execute(_WORKING_ADMIN)).one_or_none() is not None


async def revoke(connection: AsyncConnection, key_id: str) -> None:
    """Revokes a key, once."""
    await connection.execute(_REVOKE, {"id": key_id})


async def change(
    connection: AsyncConnection, key_id: str, scopes: Collection[str] | None, lifetime_seconds: float | None
) -> None:
    """Sets the key's scopes, and how long it lives from now on; None leaves either as it is."""
    values = {"id": key_id, "scopes": None if scopes is None else sorted(scopes), "seconds": lifetime_seconds}
    await connection.execute(_CHANGE, values)


async def end_after(connection: AsyncConnection, key_id: str, seconds: float) -> None:
    """Lets the key expire after so many seconds, or when it would anyway."""
    await connection.execute(_END_AFTER, {"id": key_id, "seconds": seconds})


async def mark_used(db: Database, seconds_ago: Mapping[str, float]) -> None:
    """Notes when keys were used last (id -> seconds before now). An earlier note never replaces a later one."""
    await db.execute(_MARK_USED, {"ids": list(seconds_ago), "seconds": list(seconds_ago.values())})


async def names(db: Database, ids: Collection[str]) -> dict[str, str]:
    """Id -> name, for the ids that there are. Raises StoreUnavailable."""
    return {row.id: row.name for row in await db.execute(_NAMES, {"ids": list(ids)})} if ids else {}
