"""Where prices are measured: the real Postgres, Valkey and API, and this process in the place of workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.store.database import Database
from config.settings import Settings, load_settings
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import scripted
from tests.bench.fleet.meter import Meter
from tests.bench.plan import Name
from tests.bench.processes import Role
from tests.support.services import open_folder

POOL = 24


@dataclass(frozen=True, slots=True)
class Rig:
    """`size` shrinks how often each thing is done, for tests."""

    longhaul: Longhaul
    db: Database
    meter: Meter
    settings: Settings
    size: float = 1.0

    def times(self, count: int) -> int:
        return max(2, round(count * self.size))


@asynccontextmanager
async def started_rig(size: float = 1.0) -> AsyncIterator[Rig]:
    """Services, schema and an API; no worker, no maintenance."""
    with open_folder() as folder:
        longhaul = Longhaul(Name.LONGHAUL, folder, scripted(max_num_seqs=4096))
        try:
            await longhaul.prepare()
            await longhaul.begin(Role.API)
            urls = {"DATABASE_URL": longhaul.services.database_url, "REDIS_URL": longhaul.services.redis_url}
            settings = load_settings(**urls)
            db = Database(settings.database_dsn, POOL)
            try:
                yield Rig(longhaul, db, Meter(longhaul), settings, size)
            finally:
                await db.close()
        finally:
            await longhaul.stop()
