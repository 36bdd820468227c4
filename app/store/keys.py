"""Secret keys that all processes of a deployment share, and the sealer that uses some of them.

`longhaul migrate` makes them. Each role reads those that its processes use (roles/rights.py).

The rows `seal`, `seal_2`, `seal_3`, ... are the keys that unseal. The row `sealing` has the number of the one that
seals; without it, it is the first.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from sqlalchemy import Connection, text

from app.store.database import Database, StoreUnavailable
from app.store.sealing import FIRST_KEY, KEY_BYTES, Sealer

REFRESH_SECONDS = 60.0
"""How soon every process knows a new key."""

PUBSUB_KEY_BYTES = 32
SALT_KEY_BYTES = 32

_SEAL = "seal"
_SEALING = "sealing"
_PUBSUB = "pubsub"
_CACHE_SALT = "cache_salt"
_SIZES = {_SEAL: KEY_BYTES, _PUBSUB: PUBSUB_KEY_BYTES, _CACHE_SALT: SALT_KEY_BYTES}
_NAMES = text("SELECT name FROM keys")
_VALUE = text("SELECT value FROM keys WHERE name = :name")
_READ = text("SELECT name, value FROM keys")
_MAKE = text("INSERT INTO keys (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING")
_SET = text(
    "INSERT INTO keys (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
_IS_OWNER = text("SELECT pg_has_role((SELECT relowner FROM pg_class WHERE oid = 'keys'::regclass), 'USAGE')")


def make_missing(connection: Connection) -> None:
    """Makes the keys that a deployment begins with, of random bytes; a role that is not the owner's makes none."""
    rows = connection.execute(_NAMES).scalars().all()
    known = {*rows, *([_SEAL] if _SEALING in rows else [])}  # an operator may have deleted a key that seals no more
    new = [{"name": name, "value": secrets.token_bytes(size)} for name, size in _SIZES.items() if name not in known]
    if new and connection.execute(_IS_OWNER).scalar_one():
        connection.execute(_MAKE, new)


def _missing(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"the key {name!r} is missing, or the role may not read it: run `longhaul migrate`")


class SharedKey:
    """One of the deployment's keys, read when it is first needed. Calling it returns the key."""

    def __init__(self, db: Database, name: str) -> None:
        self._db = db
        self._name = name
        self._key: bytes | None = None

    async def __call__(self) -> bytes:
        """Raises StoreUnavailable."""
        if self._key is None:
            rows = await self._db.execute(_VALUE, {"name": self._name})
            if not rows:
                raise _missing(self._name)
            self._key = rows[0].value
        return self._key


def salt_key(db: Database) -> SharedKey:
    """The key from which the projects' cache salts are made."""
    return SharedKey(db, _CACHE_SALT)


def pubsub_key(db: Database) -> SharedKey:
    """The key that signs what goes over pub/sub."""
    return SharedKey(db, _PUBSUB)


class SharedSealer:
    """The deployment's sealer. Its keys are read when it is first needed, and again from time to time."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._sealer: Sealer | None = None
        self._read_at = 0.0

    async def get(self, project: str) -> Sealer:
        """Returns the sealer of a project. Raises StoreUnavailable if the keys were never read."""
        return (await self._get()).of(project)

    async def _get(self) -> Sealer:
        if self._sealer is not None and time.monotonic() < self._read_at + REFRESH_SECONDS:
            return self._sealer
        try:
            found, number = await _read_keys(self._db)
        except StoreUnavailable:
            if self._sealer is None:
                raise
            return self._sealer
        if number not in found:
            raise _missing(_SEAL)
        self._sealer, self._read_at = Sealer(found[number], number, found), time.monotonic()
        return self._sealer


async def rotate(db: Database, pause: float = 2 * REFRESH_SECONDS) -> int:
    """Makes a new key that seals, and returns its number; the old ones still unseal.

    First all processes learn the key, then it seals: the `pause` lies between. Raises StoreUnavailable.
    """
    found, _ = await _read_keys(db)
    number = max(found) + 1
    await db.execute(_MAKE, {"name": f"{_SEAL}_{number}", "value": secrets.token_bytes(KEY_BYTES)})
    await asyncio.sleep(pause)
    await db.execute(_SET, {"name": _SEALING, "value": str(number).encode()})
    return number


async def _read_keys(db: Database) -> tuple[dict[int, bytes], int]:
    """Returns the keys by their numbers, and the number of the one that seals."""
    rows = {row.name: row.value for row in await db.execute(_READ)}
    found = {FIRST_KEY: rows[_SEAL]} if _SEAL in rows else {}
    for name, value in rows.items():
        head, _, number = name.rpartition("_")
        if head == _SEAL and number.isdecimal():
            found[int(number)] = value
    return found, int(rows.get(_SEALING, str(FIRST_KEY)))
