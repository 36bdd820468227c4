"""The pool while Postgres restarts."""

from __future__ import annotations

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError

from app.store.database import Database, StoreUnavailable


async def test_a_pool_that_finds_only_closed_connections_says_that_postgres_is_away(db: Database) -> None:
    def refuse(*_: object) -> None:
        raise DisconnectionError

    event.listen(db.engine.sync_engine, "checkout", refuse)
    with pytest.raises(StoreUnavailable):
        await db.ping()
    event.remove(db.engine.sync_engine, "checkout", refuse)
    await db.ping()
