"""Secret keys that all processes of a deployment share, and the sealer that uses some of them.

The rows `seal`, `seal_2`, `seal_3`, ... are the keys that unseal. The row `sealing` has the number of the one that
seals; without it, it is the first.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from app.store.database import Database, StoreUnavailable
from app.store.sealing import FIRST_KEY, KEY_BYTES, Sealer
from app.store.tables import keys

REFRESH_SECONDS = 60.0
"""How soon every process knows a new key."""

PUBSUB_KEY_BYTES = 32
SALT_KEY_BYTES = 32

_SEAL = "seal"
_SEALING = "sealing"


async def get_key(db: Database, name: str, size: int) -> bytes:
    """Returns the key of that name. The first process that asks for it makes it, of `size` random bytes."""
    async with db.begin() as connection:
        new = insert(keys).values(name=name, value=secrets.token_bytes(size))
        await connection.execute(new.on_conflict_do_nothing())
        key: bytes = (await connection.execute(select(keys.c.value).where(keys.c.name == name))).scalar_one()
        return key


class SharedKey:
    """One of the deployment's keys, read when it is first needed. Calling it returns the key."""

    def __init__(self, db: Database, name: str, size: int) -> None:
        self._db = db
        self._name = name
        self._size = size
        self._key: bytes | None = None

    async def __call__(self) -> bytes:
        """Raises StoreUnavailable."""
        if self._key is None:
            self._key = await get_key(self._db, self._name, self._size)
        return self._key


def salt_key(db: Database) -> SharedKey:
    """The key from which the projects' cache salts are made."""
    return SharedKey(db, "cache_salt", SALT_KEY_BYTES)


def pubsub_key(db: Database) -> SharedKey:
    """The key that signs what goes over pub/sub."""
    return SharedKey(db, "pubsub", PUBSUB_KEY_BYTES)


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
        self._sealer, self._read_at = Sealer(found[number], number, found), time.monotonic()
        return self._sealer


async def rotate(db: Database, pause: float = 2 * REFRESH_SECONDS) -> int:
    """Makes a new key that seals, and returns its number; the old ones still unseal.

    First all processes learn the key, then it seals: the `pause` lies between. Raises StoreUnavailable.
    """
    found, _ = await _read_keys(db)
    number = max(found) + 1
    await get_key(db, f"{_SEAL}_{number}", KEY_BYTES)
    await asyncio.sleep(pause)
    async with db.begin() as connection:
        row = insert(keys).values(name=_SEALING, value=str(number).encode())
        await connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"value": row.excluded.value}))
    return number


async def _read_keys(db: Database) -> tuple[dict[int, bytes], int]:
    """Returns the keys by their numbers, and the number of the one that seals."""
    rows = {row.name: row.value for row in await db.execute(select(keys))}
    found = {FIRST_KEY: rows[_SEAL] if _SEAL in rows else await get_key(db, _SEAL, KEY_BYTES)}
    for name, value in rows.items():
        head, _, number = name.rpartition("_")
        if head == _SEAL and number.isdecimal():
            found[int(number)] = value
    return found, int(rows.get(_SEALING, str(FIRST_KEY)))
