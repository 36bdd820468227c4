"""A complete Longhaul: API processes, workers, maintenance and Flower, with their own Postgres and Valkey.

Every process has its own proxies to the services. All run a copy of the code that is made at the start, so the
checkout may be edited during a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import psutil
import redis.asyncio
from sqlalchemy import event, text

from app.local import programs
from app.local.children import Program, run
from app.local.ports import free_port
from app.store.database import Database, StoreUnavailable
from app.store.roles.rights import API, MAINTENANCE, WORKER
from config.settings import CHECKOUT, Settings, load_settings
from tests.faults import accounts, audit, clocks, full_disk, tenants
from tests.faults.clocks import Clock
from tests.faults.member import Member, Role
from tests.faults.plan import MODEL, WHOLE_SECONDS, Plan
from tests.faults.polling import with_pause
from tests.faults.proxy import HOST, Connect, Proxy
from tests.faults.tenants import Tenants
from tests.support import next_version
from tests.support.processes import marked
from tests.support.scripted.attached import URL
from tests.support.services import AS_OWNER, Services
from tests.support.waiting import until

CODE = ("app", "workers", "config", "migrations")
COMMAND = (sys.executable, "-c", "from app.cli import main; main()")
"""`longhaul` of the code in the working directory."""
BROKEN = Path(__file__).with_name("broken")
MARK = "LONGHAUL_TEST_FAULTS"
"""An environment variable that marks every process of a fleet, to find those that outlive it."""
SUITE = "faults"
"""The name of the suite's own sessions in Postgres."""
STOP_GRACE_SECONDS = 20.0
HTTP_SECONDS = 15.0
TAIL_LINES = 8
"""Lines of each log that a failed start shows."""


_OWNED_AND_STREAMING = text(
    "SELECT w.pid, r.id, r.attempt FROM responses r JOIN workers w ON w.id = r.worker WHERE r.status = 'in_progress'"
    " AND EXISTS (SELECT FROM chunks c WHERE c.response_id = r.id AND c.attempt = r.attempt)"
)


class Fleet:
    """The processes and services of a run. Made by `running`."""

    def __init__(self, plan: Plan, services: Services) -> None:
        self.plan = plan
        self.services = services
        self.folder = services.folder / "fleet"
        self.began = time.time()
        self.models = self.folder / "models.toml"
        self.members: list[Member] = []
        self.db = Database(services.database_url, 4)
        event.listen(self.db.engine.sync_engine, "connect", _spare)
        self.http = httpx.AsyncClient(timeout=HTTP_SECONDS, verify=False)  # loads no certificates: there is no TLS here
        self.clocks: Path | None = None
        """The library that shifts clocks (`clocks`)."""
        self.tenants: Tenants | None = None
        """The projects of a plan with keys. `http` then sends the key of the first."""
        self._mark = services.folder.name
        self._code = "code"
        """The folder of the code that processes start with."""

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role]

    @property
    def urls(self) -> list[str]:
        """URLs of the API processes."""
        return [member.address for member in self.of(Role.API)]

    @property
    def valkey(self) -> redis.asyncio.Redis:
        """A new client, connected without a proxy."""
        client: redis.asyncio.Redis = redis.asyncio.from_url(self.services.redis_url)
        return client

    def headers_of(self, project: str) -> dict[str, str]:
        """The headers by which a client belongs to a project."""
        return {} if self.tenants is None else self.tenants.headers_of(project)

    async def ready_workers(self) -> dict[int, str]:
        """pid -> id of the workers whose lease is valid in Postgres."""
        rows = await self.db.execute(text("SELECT pid, id FROM workers WHERE lease_until > now()"))
        return {row.pid: row.id for row in rows}

    async def owned(self) -> dict[str, dict[str, int]]:
        """Worker's name -> its responses with chunks of this attempt -> the attempt. Empty without Postgres."""
        names = {member.pid: member.name for member in self.of(Role.WORKER)}
        found: dict[str, dict[str, int]] = {}
        with contextlib.suppress(StoreUnavailable):
            for row in await self.db.execute(_OWNED_AND_STREAMING):
                if (name := names.get(row.pid)) is not None:
                    found.setdefault(name, {})[row.id] = row.attempt
        return found

    async def busiest(self) -> tuple[Member, dict[str, int]] | None:
        """The worker with the most such responses (`owned`), and these; None if no worker has any."""
        owned = await self.owned()
        if not owned:
            return None
        name = max(owned, key=lambda name: len(owned[name]))
        return next(member for member in self.of(Role.WORKER) if member.name == name), owned[name]

    async def wait_until_whole(self, seconds: float = WHOLE_SECONDS, condition: str = "the fleet is whole") -> None:
        """Waits for `is_whole`. Raises AssertionError after `seconds`, with the last lines of every log."""
        try:
            await until(with_pause(self.is_whole), seconds, condition)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self._log_tails()])) from None

    def _log_tails(self) -> list[str]:
        lines = []
        for member in self.members:
            log = member.log.read_text(encoding="utf-8").splitlines() if member.log.exists() else []
            lines += [f"-- {member.name}: pid {member.pid}, started {member.starts} times", *log[-TAIL_LINES:]]
        return lines

    async def is_whole(self) -> bool:
        """Whether every process runs, every API process and worker is ready, and no other worker has a valid lease."""
        with contextlib.suppress(StoreUnavailable, httpx.TransportError):
            pids = {member.pid for member in self.of(Role.WORKER)}
            if set(await self.ready_workers()) != pids or not all(member.pid for member in self.members):
                return False
            answers = [await self.http.get(f"{url}/health/ready") for url in self.urls]
            return all(answer.json()["status"] == "ready" for answer in answers)
        return False

    def left_behind(self) -> list[str]:
        """Processes of this fleet that still run, whatever their parent is now."""
        found = []
        for process in marked(MARK, self._mark):
            with contextlib.suppress(psutil.Error):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        return found

    # -- start ---------------------------------------------------------------------------------------------------

    @property
    def database_url(self) -> str:
        """The URL of the processes. Where a promise is broken, it is the owner's: no role may do what breaks it."""
        return self.services.owner_url if self.plan.broken else self.services.database_url

    def write_password(self, password: str) -> None:
        """Into the file from which processes read the password of Postgres for each new connection."""
        file = self.folder / "pgpass"
        file.touch(mode=0o600)
        file.write_text(f"*:*:*:*:{password}\n")

    async def prepare(self) -> None:
        self.folder.mkdir()
        self.write_password(urlsplit(self.database_url).password or "")
        self.clocks = clocks.build(self.folder)
        for name in CODE:
            shutil.copytree(CHECKOUT / name, self.folder / "code" / name)
        if self.plan.upgrade:
            next_version.write(self.folder / "next", CODE)
        self.models.write_text(self.plan.models, encoding="utf-8")
        await self._migrate()
        async with self.db.begin() as connection:
            for statement in (
                AS_OWNER,
                *audit.INSTALL,
                *full_disk.INSTALL,
                *(accounts.INSTALL if self.plan.keys else ()),
            ):
                await connection.execute(text(statement))
        if self.plan.keys:
            self.tenants = await tenants.create(self.db, self.services.redis_url)
            self.http.headers.update(self.tenants.projects[0].headers)

    async def upgrade(self) -> None:
        """Migrates the database; from then on, a process that starts runs the next version's code."""
        self._code = "next"
        await self._migrate()

    async def _migrate(self) -> None:
        """In a process of its own, as in production: Alembic does not support several migrations in one process."""
        env = {**os.environ, "DATABASE_URL": self.services.owner_url}
        status, line = await run(Program((*COMMAND, "migrate"), env, self.folder / self._code), lambda _: None)
        assert status == 0, line

    async def add(self, role: Role, number: int, stack: AsyncExitStack) -> None:
        to_postgres, *to_standby = self._to_postgres()
        postgres, valkey = Proxy(to_postgres, standby=next(iter(to_standby), None)), Proxy(_to_valkey(self.services))
        for proxy in (postgres, valkey):
            await proxy.start()
            stack.push_async_callback(proxy.close)
        name, port, front = f"{role.value}.{number}", free_port(), None
        clock = Clock(self.clocks, self.folder / f"{name}.clock") if self.clocks else None
        address = f"http://{HOST}:{port}" if role is Role.API else ""
        if role is Role.SERVER:
            front = Proxy(partial(asyncio.open_connection, HOST, port))
            await front.start()
            stack.push_async_callback(front.close)
            describe, address = partial(self._server, port), f"http://{HOST}:{front.port}"
        else:
            is_attached = role is Role.WORKER and number <= self.plan.servers
            own = {URL: self.of(Role.SERVER)[number - 1].address} if is_attached else {}
            describe = partial(self._program, role, port, postgres, valkey, clock, own)
        member = Member(name, role, describe, self.folder / f"{name}.log", postgres, valkey, address, clock, front)
        self.members.append(member)
        member.start()

    def _to_postgres(self) -> list[Connect]:
        """To the server, or to both servers of a pair."""
        folders = parse_qs(urlsplit(self.services.database_url).query)["host"][0].split(",")
        return [partial(asyncio.open_unix_connection, f"{folder}/.s.PGSQL.5432") for folder in folders]

    def _server(self, port: int) -> Program:
        argv = (sys.executable, "-m", "tests.support.scripted.server", str(port), json.dumps(self.plan.engine_args))
        return Program(argv, {**os.environ, MARK: self._mark}, self.folder / self._code, grace=STOP_GRACE_SECONDS)

    def _program(
        self,
        role: Role,
        port: int,
        postgres: Proxy,
        valkey: Proxy,
        clock: Clock | None,
        variables: Mapping[str, str],
    ) -> Program:
        url, redis_password = urlsplit(self.database_url), urlsplit(self.services.redis_url).password
        hosts = ",".join(f"{HOST}:{each}" for each in postgres.ports)
        has_rights = role in _ROLES and not self.plan.broken
        options = f"?options={quote(f'-c role={_ROLES[role]}', safe='')}" if has_rights else ""
        urls = {
            "DATABASE_URL": f"postgresql://{url.username}@{hosts}{url.path}{options}",
            "REDIS_URL": f"redis://:{redis_password}@{HOST}:{valkey.port}/0",
        }
        own = {"port": port, "flower_port": port, "worker_concurrency": self.plan.concurrency}
        settings = load_settings(**urls, **own, home=self.folder / "home", models=self.models, model=MODEL)
        env = {**os.environ, **self.plan.settings, **urls, **programs.absolute_paths(settings)}
        launch = _LAUNCH[role](settings)
        env |= launch.env | (clock.environment if clock else {})
        env |= variables
        env |= {MARK: self._mark, "PYTHONUNBUFFERED": "1", "PGPASSFILE": str(self.folder / "pgpass")}
        if role is not Role.FLOWER:
            env["LONGHAUL_METRICS_PORT"] = str(free_port())
        if self.plan.broken:
            env |= {"PYTHONPATH": str(BROKEN), "LONGHAUL_TEST_BREAK": ",".join(self.plan.broken)}
        return Program((sys.executable, *launch.argv), env, self.folder / self._code, grace=STOP_GRACE_SECONDS)


_ROLES = {Role.API: API, Role.WORKER: WORKER, Role.MAINTENANCE: MAINTENANCE}
_LAUNCH: dict[Role, Callable[[Settings], programs.Launch]] = {
    Role.API: programs.api,
    Role.WORKER: programs.worker,
    Role.MAINTENANCE: programs.maintenance,
    Role.FLOWER: programs.flower,
}


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Fleet]:
    """A fleet that is ready. All its processes end with the block."""
    async with AsyncExitStack() as stack:
        services = await asyncio.to_thread(Services, standby=plan.standby)
        stack.push_async_callback(asyncio.to_thread, services.close)
        fleet = Fleet(plan, services)
        stack.push_async_callback(fleet.db.close)
        stack.push_async_callback(fleet.http.aclose)
        await fleet.prepare()
        counts = {
            Role.SERVER: plan.servers,
            Role.API: plan.apis,
            Role.WORKER: plan.workers,
            Role.MAINTENANCE: plan.maintenances,
        }
        try:
            for role, count in {**counts, Role.FLOWER: int(plan.flower)}.items():
                for number in range(1, count + 1):
                    await fleet.add(role, number, stack)
            await fleet.wait_until_whole()
            yield fleet
        finally:
            await stop(fleet)
            if plan.logs is not None:
                plan.logs.mkdir(parents=True, exist_ok=True)
                for log in fleet.folder.glob("*.log"):
                    shutil.copy(log, plan.logs)


async def stop(fleet: Fleet) -> None:
    """Stops every process in order, even if this is cancelled or one of them fails.

    Proxies are closed after this: no member may start a program then. May be called again.
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


def _to_valkey(services: Services) -> Connect:
    return partial(asyncio.open_connection, HOST, urlsplit(services.redis_url).port)


def _spare(connection: Any, _record: object) -> None:
    """Tells the suite's own sessions from those of the product, and keeps the time limits of faults from them."""
    connection.run_async(
        lambda driver: driver.execute(
            f"SET application_name = '{SUITE}'; SET statement_timeout = 0; SET lock_timeout = 0"
        )
    )
