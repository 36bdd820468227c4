"""Longhaul as in production: `longhaul api`, `worker` and `maintenance` on a Postgres and a Valkey of their own.

It runs a copy of the code that is made at the start, so the checkout may be edited during a run.
A variant runs other code (an older checkout, for example) or other settings beside it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sqlalchemy import text

from app.local.children import Program, run
from app.local.ports import free_port
from app.store.database import Database
from config.settings import CHECKOUT
from tests.bench.contenders.base import CannotStart, Contender, answers
from tests.bench.contenders.models import NAME, Served
from tests.bench.contenders.peer import HOST
from tests.bench.load import Load
from tests.bench.measurement import Go, client
from tests.bench.processes import Role
from tests.support.services import Services

CODE = ("app", "workers", "config", "migrations")
COMMAND = (sys.executable, "-c", "from app.cli import main; main()")
LEASE_SECONDS = "3600"
"""Long, so that a worker that is held still while others are measured does not count as dead."""
PROGRAMS = (Role.API, Role.WORKER, Role.MAINTENANCE)
POOL = 4


@dataclass(frozen=True, slots=True)
class Variant:
    """Code to run, and variables on top of the environment."""

    code: Path = CHECKOUT
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, words: str) -> tuple[str, Variant]:
        """`NAME:code=FOLDER,VARIABLE=VALUE,...`. Raises ValueError."""
        name, _, rest = words.partition(":")
        given = dict(pair.split("=", 1) for pair in rest.split(","))
        return name, cls(Path(given.pop("code", CHECKOUT)).resolve(), given)


class Longhaul(Contender):
    def __init__(self, name: str, folder: Path, served: Served, variant: Variant | None = None) -> None:
        super().__init__(name, folder)
        self.variant = variant or Variant()
        self.url = f"http://{HOST}:{free_port()}"
        self._models = folder / f"{name}.toml"
        served.write(self._models)
        self._services: Services | None = None
        self._db: Database | None = None

    # -- its life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Services, a copy of the code, the schema, and last the programs."""
        services = self._services = await asyncio.to_thread(Services)
        self._db = Database(services.database_url, POOL)
        for name in CODE:
            shutil.copytree(self.variant.code / name, self._code / name, ignore=shutil.ignore_patterns("__pycache__"))
        environment = self._environment(services)
        owner = {"DATABASE_URL": services.owner_url}
        migrate = Program((*COMMAND, "migrate"), {**os.environ, **environment, **owner}, self._code)
        status, line = await run(migrate, self._note)
        if status:
            raise CannotStart(f"{self.name}: {line}")
        for role in PROGRAMS:
            env = dict(environment)
            if (port := env.get("LONGHAUL_METRICS_PORT")) is not None:  # a port for each process
                env["LONGHAUL_METRICS_PORT"] = str(int(port) + [*Role].index(role))
            await self.launch(role, (*COMMAND, role.value), env, self._code)
        await self.ready(Role.API, partial(answers, f"{self.url}/health/live"))
        await self.ready(Role.WORKER, partial(answers, f"{self.url}/health/ready?model={NAME}"))

    async def stop(self) -> None:
        await super().stop()
        if self._db is not None:
            await self._db.close()
        if self._services is not None:
            await asyncio.to_thread(self._services.close)
            self._services = None

    # -- runner ------------------------------------------------------------------------------------------------

    def client(self, load: Load) -> AbstractAsyncContextManager[Go]:
        return client(replace(load, url=self.url, body={"model": NAME, **load.body}))

    async def wal_bytes(self) -> int | None:
        assert self._db is not None, "not started"
        async with self._db.autocommit() as connection:
            lsn = await connection.execute(text("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))
            return int(lsn.scalar_one())

    # -- looking inside ----------------------------------------------------------------------------------------

    def processes(self) -> Mapping[Role, Sequence[int]]:
        found = {role: list(pids) for role, pids in super().processes().items()}
        api = self.below(Role.API)
        if len(api) > 1:  # several API processes below uvicorn's own, and no engine
            found[Role.API] = api
            found[Role.ENGINE] = [pid for pid in found[Role.ENGINE] if pid not in api]
        if self._services is not None:
            found |= {Role.POSTGRES: self._services.postgres.pids, Role.REDIS: self._services.valkey.pids}
        return {role: pids for role, pids in found.items() if pids}

    @property
    def _code(self) -> Path:
        return self.folder / f"{self.name}-code"

    def _environment(self, services: Services) -> dict[str, str]:
        return {
            "LONGHAUL_LEASE_SECONDS": LEASE_SECONDS,
            "LONGHAUL_PORT": self.url.rpartition(":")[2],
            "LONGHAUL_MODELS": str(self._models),
            "LONGHAUL_HOME": str(self.folder / f"{self.name}-home"),
            "DATABASE_URL": services.database_url,
            "REDIS_URL": services.redis_url,
            "PYTHONUNBUFFERED": "1",
            **self.variant.settings,
        }
