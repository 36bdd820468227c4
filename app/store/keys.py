"""Secret keys that every process of a deployment shares."""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from app.store.database import Database
from app.store.sealing import KEY_BYTES, Seal
from app.store.tables import keys


async def get_key(db: Database, name: str, size: int) -> bytes:
    """The key of that name: `size` random bytes, made by the first process that asks."""
    async with db.begin() as connection:
        made = insert(keys).values(name=name, value=secrets.token_bytes(size))
        await connection.execute(made.on_conflict_do_nothing())
        found: bytes = (await connection.execute(select(keys.c.value).where(keys.c.name == name))).scalar_one()
        return found


class Seals:
    """The deployment's seal, read when it is first needed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seal: Seal | None = None

    async def get(self) -> Seal:
        """Raises StoreUnavailable."""
        if self._seal is None:
            self._seal = Seal(await get_key(self._db, "seal", KEY_BYTES))
        return self._seal
