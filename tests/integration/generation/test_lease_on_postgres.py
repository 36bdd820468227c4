"""The lease of a worker while its connections to a real Postgres fall silent."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from app.store import servers
from app.store.database import Database
from app.store.queue import workers
from tests.faults.proxy import HOST, Mode, Proxy
from tests.support.scripted import ScriptedEngine
from tests.support.waiting import until
from tests.support.worker import lease_of, scripted_model
from workers.generation import lease as module
from workers.generation.run import ActiveRuns
from workers.generation.slots import Slots


async def test_a_worker_finds_the_new_primary_before_its_lease_ends_although_the_old_one_just_falls_silent(
    services: Any, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover by DNS: packets to the old address are dropped, so its connections never break."""
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(servers, "CONNECT_SECONDS", 0.3)
    url = urlsplit(services.database_url)
    socket = f"{parse_qs(url.query)['host'][0]}/.s.PGSQL.5432"
    old, new = (Proxy(partial(asyncio.open_unix_connection, socket)) for _ in range(2))
    for proxy in (old, new):
        await proxy.start()
    named = Database(f"postgresql://{url.username}:{url.password}@{HOST}:{old.port},{HOST}:{new.port}{url.path}")
    model, slots = scripted_model(), Slots(8, 8)
    lease = lease_of(ScriptedEngine(model), model, named, 3.0, ActiveRuns(), slots, "scripted-1f2e3d4c@host")
    try:
        await lease.start()
        worker = lease.worker
        old.set(Mode.STALL)
        before = await lease_until(db)
        await until(partial(renewed, db, before), what="a heartbeat through the new server")
        assert lease.worker == worker
        assert await workers.is_alive(db, worker)
    finally:
        await lease.close()
        await named.close()
        for proxy in (old, new):
            await proxy.close()


async def lease_until(db: Database) -> Any:
    async with db.pooled_driver_connection() as connection:
        return await connection.fetchval("SELECT lease_until FROM workers")


async def renewed(db: Database, before: Any) -> bool:
    return bool(await lease_until(db) > before)
