"""A whole Longhaul, as processes: APIs, workers, maintenance and Flower on a Postgres and a Valkey of its own.

Every process reaches its services through proxies of its own, and runs a copy of the code that was made at the
start: who edits the checkout meanwhile changes nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
import redis.asyncio
from sqlalchemy import text

from app.local import programs
from app.local.children import Program, run
from app.local.ports import free_port
from app.store.database import Database, StoreUnavailable
from config.settings import CHECKOUT, Settings, load_settings
from tests.faults import audit
from tests.faults.member import Member, Role
from tests.faults.plan import Plan
from tests.faults.proxy import HOST, Connect, Proxy
from tests.faults.seldom import seldom
from tests.support.services import Services
from tests.support.waiting import until

CODE = ("app", "workers", "config", "migrations")
BROKEN = Path(__file__).with_name("broken")
MARK = "LONGHAUL_TEST_FAULTS"
"""An environment variable of every process of a fleet, by which those left behind are found."""
STOP_GRACE_SECONDS = 20.0
LAST_WORDS = 8
"""Lines of each log."""


_SPOKEN = text(
    "SELECT w.pid, r.id, r.attempt FROM responses r JOIN workers w ON w.id = r.worker WHERE r.status = 'in_progress'"
    " AND EXISTS (SELECT FROM chunks c WHERE c.response_id = r.id AND c.attempt = r.attempt)"
)


class Fleet:
    """Everything that runs. Make it with `running`."""

    def __init__(self, plan: Plan, services: Services) -> None:
        self.plan = plan
        self.services = services
        self.folder = services.folder / "fleet"
        self.models = self.folder / ("code/config/models.toml" if plan.demo else "models.toml")
        self.members: list[Member] = []
        self.db = Database(_sqlalchemy(services.database_url), 4)
        self.http = httpx.AsyncClient(timeout=3, verify=False)  # no TLS here, so no certificates to load
        self._mark = services.folder.name

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role]

    @property
    def urls(self) -> list[str]:
        """Where the APIs listen."""
        return [member.address for member in self.of(Role.API)]

    @property
    def valkey(self) -> redis.asyncio.Redis:
        """A client of the driver's own."""
        client: redis.asyncio.Redis = redis.asyncio.from_url(self.services.redis_url)
        return client

    async def ready_workers(self) -> dict[int, str]:
        """pid -> id of the workers that Postgres takes for alive."""
        async with self.db.autocommit() as connection:
            rows = await connection.execute(text("SELECT pid, id FROM workers WHERE lease_until > now()"))
            return {row.pid: row.id for row in rows}

    async def owned(self) -> dict[str, dict[str, int]]:
        """Worker's name -> the responses that it has begun to speak, with their attempts; {} where Postgres is away."""
        names = {member.pid: member.name for member in self.of(Role.WORKER)}
        found: dict[str, dict[str, int]] = {}
        with contextlib.suppress(StoreUnavailable):
            async with self.db.autocommit() as connection:
                for row in await connection.execute(_SPOKEN):
                    if (name := names.get(row.pid)) is not None:
                        found.setdefault(name, {})[row.id] = row.attempt
        return found

    async def busiest(self) -> tuple[Member, dict[str, int]] | None:
        """The worker that speaks most responses, and those; None where none speaks."""
        owned = await self.owned()
        if not owned:
            return None
        name = max(owned, key=lambda name: len(owned[name]))
        return next(member for member in self.of(Role.WORKER) if member.name == name), owned[name]

    async def whole(self, seconds: float, what: str = "the fleet is whole") -> None:
        """Waits for that. Where it never comes, the last lines of every log tell whoever reads CI's output alone."""
        try:
            await until(seldom(self.is_whole), seconds, what)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self._last_words()])) from None

    def _last_words(self) -> list[str]:
        told = []
        for member in self.members:
            lines = member.log.read_text(encoding="utf-8").splitlines() if member.log.exists() else []
            told += [f"-- {member.name}: pid {member.pid}, started {member.starts} times", *lines[-LAST_WORDS:]]
        return told

    async def is_whole(self) -> bool:
        """Every process runs, every API and worker is ready, and nobody else is taken for alive."""
        with contextlib.suppress(StoreUnavailable, httpx.TransportError):
            pids = {member.pid for member in self.of(Role.WORKER)}
            if set(await self.ready_workers()) != pids or not all(member.pid for member in self.members):
                return False
            answers = [await self.http.get(f"{url}/health/ready") for url in self.urls]
            return all(answer.status_code == httpx.codes.OK for answer in answers)
        return False

    def left_behind(self) -> list[str]:
        """Processes of this fleet that are alive, whoever their parent is now."""
        found = []
        for process in psutil.process_iter(["pid", "name"]):
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        return found

    # -- making it -------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        self.folder.mkdir()
        for name in CODE:
            shutil.copytree(CHECKOUT / name, self.folder / "code" / name)
        if self.plan.models is not None:
            self.models.write_text(self.plan.models, encoding="utf-8")
        await self._migrate()
        await audit.install(self.db)

    async def _migrate(self) -> None:
        """In a process, as a release does it: alembic is not for several at once in one process."""
        argv = (sys.executable, "-c", "from app.cli import main; main()", "migrate")
        env = {**os.environ, "DATABASE_URL": self.services.database_url}
        status, line = await run(Program(argv, env, self.folder / "code"), lambda _: None)
        assert status == 0, line

    async def add(self, role: Role, number: int, stack: AsyncExitStack) -> None:
        postgres, valkey = Proxy(_to_postgres(self.services)), Proxy(_to_valkey(self.services))
        for proxy in (postgres, valkey):
            await proxy.start()
            stack.push_async_callback(proxy.close)
        name, port = f"{role.value}.{number}", free_port()
        describe = partial(self._program, role, port, postgres, valkey)
        address = f"http://{HOST}:{port}" if role is Role.API else ""
        member = Member(name, role, describe, self.folder / f"{name}.log", postgres, valkey, address)
        self.members.append(member)
        member.start()

    def _program(self, role: Role, port: int, postgres: Proxy, valkey: Proxy) -> Program:
        password = urlsplit(self.services.redis_url).password
        urls = {
            "DATABASE_URL": f"postgresql://longhaul@{HOST}:{postgres.port}/longhaul",
            "REDIS_URL": f"redis://:{password}@{HOST}:{valkey.port}/0",
        }
        home = self.folder / "home"
        settings = load_settings(**urls, home=home, models=self.models, port=port, flower_port=port)
        launch = _LAUNCH[role](settings)
        env = {**os.environ, **self.plan.settings, **urls, **programs.absolute_paths(settings), **launch.env}
        env |= {MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        if self.plan.broken is not None:
            env |= {"PYTHONPATH": str(BROKEN), "LONGHAUL_TEST_BREAK": self.plan.broken}
        return Program((sys.executable, *launch.argv), env, self.folder / "code", grace=STOP_GRACE_SECONDS)


_LAUNCH: dict[Role, Callable[[Settings], programs.Launch]] = {
    Role.API: programs.api,
    Role.WORKER: programs.worker,
    Role.MAINTENANCE: programs.maintenance,
    Role.FLOWER: programs.flower,
}


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Fleet]:
    """A fleet that is ready. Nothing of it is left afterwards, whatever happens in the block."""
    async with AsyncExitStack() as stack:
        services = await asyncio.to_thread(Services)
        stack.push_async_callback(asyncio.to_thread, services.close)
        fleet = Fleet(plan, services)
        stack.push_async_callback(fleet.db.close)
        stack.push_async_callback(fleet.http.aclose)
        await fleet.prepare()
        counts = {Role.API: plan.apis, Role.WORKER: plan.workers, Role.MAINTENANCE: plan.maintenances}
        try:
            for role, count in {**counts, Role.FLOWER: int(plan.flower)}.items():
                for number in range(1, count + 1):
                    await fleet.add(role, number, stack)
            await fleet.whole(plan.whole_seconds)
            yield fleet
        finally:
            await stop(fleet)
            _keep_logs(fleet)


async def stop(fleet: Fleet) -> None:
    """Stops every process in order, to the last one, whoever is cancelled and whatever goes wrong with another.

    Proxies are closed after this: nobody may be there to start a program then. May be called again.
    """
    members, fleet.members = fleet.members, []
    closing = asyncio.gather(*(member.close() for member in members), return_exceptions=True)
    try:
        statuses = await asyncio.shield(closing)
    except asyncio.CancelledError:
        await closing
        raise
    for failed in (status for status in statuses if isinstance(status, BaseException)):
        raise failed


def _keep_logs(fleet: Fleet) -> None:
    if fleet.plan.logs is not None:
        fleet.plan.logs.mkdir(parents=True, exist_ok=True)
        for log in fleet.folder.glob("*.log"):
            shutil.copy(log, fleet.plan.logs)


def _to_postgres(services: Services) -> Connect:
    folder = parse_qs(urlsplit(services.database_url).query)["host"][0]
    return partial(asyncio.open_unix_connection, f"{folder}/.s.PGSQL.5432")


def _to_valkey(services: Services) -> Connect:
    return partial(asyncio.open_connection, HOST, urlsplit(services.redis_url).port)


def _sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://")
