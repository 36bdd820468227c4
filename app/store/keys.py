"""Secret keys that all processes of a deployment share, and the sealer that uses one of them."""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from app.store.database import Database
from app.store.sealing import KEY_BYTES, Sealer
from app.store.tables import keys

PUBSUB_KEY_BYTES = 32


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


def pubsub_key(db: Database) -> SharedKey:
    """The key that signs what goes over pub/sub."""
    return SharedKey(db, "pubsub", PUBSUB_KEY_BYTES)


class SharedSealer:
    """The deployment's sealer. Its key is read when it is first needed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._sealer: Sealer | None = None

    async def get(self) -> Sealer:
        """Raises StoreUnavailable."""
        if self._sealer is None:
            self._sealer = Sealer(await get_key(self._db, "seal", KEY_BYTES))
        return self._sealer
