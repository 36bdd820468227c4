"""Every process with exactly the rights that docs/operations.md asks for, on a Redis with TLS."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
import redis
from openai import OpenAI

from app.local.ports import free_port
from app.store.database import Database
from app.store.roles.granting import HELD
from app.store.roles.rights import API, MAINTENANCE, MONITOR, RIGHTS, ROLES, WORKER, wanted
from config.settings import CHECKOUT
from tests.faults.proxy import HOST, Proxy
from tests.support.celery_processes import ForkedProcess
from tests.support.certificates import Authority
from tests.support.scripted import models_of
from tests.support.services import LoopThread, Services
from tests.support.upping import longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync

PAGE = (CHECKOUT / "docs" / "operations.md").read_text(encoding="utf-8")
DATABASE = "longhaul_rights"
OWNER = "rights_owner"
AUTH = ("longhaul", "secret")
SPEED = "[models.engine_args]\ntokens_per_second = 50\n"


def block(language: str) -> str:
    """The only block of the page in this language."""
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


async def run_as_administrator(url: str, statements: list[str]) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def roles(services: Services) -> Iterator[dict[str, str]]:
    """The URL of each role, in a database that the page's statements have made.

    The embedded server's owner may do more for tests, so this one has another name. The roles of processes are known by
    their names: they are those of the embedded server, which the page's statements would make alike.
    """
    url = urlsplit(services.owner_url)
    page = block("sql").replace("DATABASE longhaul", f"DATABASE {DATABASE}").replace("longhaul_owner", OWNER)
    assert set(re.findall(r"CREATE ROLE (\w+) LOGIN PASSWORD '\w+'", page)) == {OWNER, *ROLES}
    page = re.sub(rf"CREATE ROLE (?!{OWNER}).*\n", "", page)
    [password] = re.findall("PASSWORD '(.*)'", page)
    before, after = page.split("\\connect longhaul\n")
    own = url._replace(path=f"/{DATABASE}").geturl()
    with let_in(services, OWNER), dropped_afterwards(url.geturl()):
        for target, statements in ((url.geturl(), before), (own, after)):
            asyncio.run(run_as_administrator(target, [each for each in statements.split(";\n") if each]))
        urls = {role: urlsplit(services.url_of(role))._replace(path=f"/{DATABASE}").geturl() for role in ROLES}
        urls[OWNER] = f"postgresql://{OWNER}:{password}@/{DATABASE}?{url.query}"
        until_sync(lambda: asyncio.run(is_let_in(urls[OWNER])), what="Postgres has read its rules")
        yield urls


@contextmanager
def let_in(services: Services, name: str) -> Iterator[None]:
    """The embedded server lets in no others but its own roles."""
    [file] = (services.folder / "home").glob("postgres-*/data/pg_hba.conf")
    rules = file.read_text()

    def replace_rules(text: str) -> None:
        file.write_text(text)
        os.kill(services.postgres.pids[0], signal.SIGHUP)

    replace_rules(f"{rules}local all {name} scram-sha-256\n")
    try:
        yield
    finally:
        replace_rules(rules)


@contextmanager
def dropped_afterwards(url: str) -> Iterator[None]:
    try:
        yield
    finally:
        drop = [f"DROP DATABASE IF EXISTS {DATABASE} (FORCE)", f"DROP ROLE IF EXISTS {OWNER}"]
        asyncio.run(run_as_administrator(url, drop))


async def is_let_in(url: str) -> bool:
    with suppress(asyncpg.PostgresError):
        await (await asyncpg.connect(url)).close()
        return True
    return False


@contextmanager
def redis_user(services: Services, folder: Path) -> Iterator[str]:
    """The URL of Redis, with TLS, for the page's user."""
    name, *rules = block("acl").split()
    [password] = [rule[1:] for rule in rules if rule.startswith(">")]
    authority, thread = Authority(folder), LoopThread()
    port = urlsplit(services.redis_url).port
    proxy = Proxy(partial(asyncio.open_connection, HOST, port), tls=authority.context())
    with redis.Redis.from_url(services.redis_url, decode_responses=True) as administrator:
        administrator.execute_command("ACL", "SETUSER", name, "reset", *rules)
        administrator.acl_log_reset()
        thread.run(proxy.start())
        try:
            yield f"rediss://{name}:{password}@{HOST}:{proxy.port}/0?ssl_ca_certs={authority.file}"
        finally:
            refused = [(each["reason"], each["object"], each["context"]) for each in administrator.acl_log()]
            thread.run(proxy.close())
            thread.close()
            administrator.acl_deluser(name)
            assert not refused, refused


class Deployment:
    """One process of each kind; `api` and `flower` are clients of theirs."""

    def __init__(self, stack: ExitStack, folder: Path, urls: Mapping[str, str], redis_url: str) -> None:
        (folder / "models.toml").write_text(models_of("scripted") + SPEED)
        port, flower_port = free_port(), free_port()
        env = {
            "REDIS_URL": redis_url,
            "LONGHAUL_HOME": str(folder / "home"),
            "LONGHAUL_MODELS": str(folder / "models.toml"),
            "LONGHAUL_PORT": str(port),
            "LONGHAUL_FLOWER_PORT": str(flower_port),
            "LONGHAUL_FLOWER_AUTH": ":".join(AUTH),
            "LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0",
        }
        migrate = ForkedProcess(["migrate"], {**env, "DATABASE_URL": urls[OWNER]}, folder / "migrate.log")
        assert migrate.wait() == 0, migrate.text
        self.processes = {}
        self.metrics_port = free_port()
        own = {"LONGHAUL_METRICS_PORT": str(self.metrics_port), "LONGHAUL_MONITOR_DATABASE_URL": urls[MONITOR]}
        for name, role in {"api": API, "worker": WORKER, "maintenance": MAINTENANCE, "flower": API}.items():
            more = {"DATABASE_URL": urls[role], **(own if name == "maintenance" else {})}
            process = ForkedProcess([name], {**env, **more}, folder / f"{name}.log")
            stack.callback(process.kill)
            self.processes[name] = process
        self.api = stack.enter_context(OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0))
        self.health = f"http://127.0.0.1:{port}/health/ready"
        flower = httpx.Client(base_url=f"http://127.0.0.1:{flower_port}", auth=AUTH, timeout=PATIENCE_SECONDS)
        self.flower = stack.enter_context(flower)

    def wait_until_ready(self) -> None:
        until_sync(lambda: answers(self.health), what=lambda: f"ready: {self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"-- {name}\n{process.text[-3000:]}" for name, process in self.processes.items())


FORBIDDEN = (
    "CREATE TABLE more (n int)",
    "CREATE TEMPORARY TABLE more (n int)",
    "CREATE SCHEMA more",
    "CREATE FUNCTION public.more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE ROLE more",
    "CREATE DATABASE more",
    "ALTER SYSTEM SET fsync = off",
    "COPY projects TO PROGRAM 'true'",
    "COPY projects TO '/tmp/projects'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT public.settle_response()",
)
OF_EACH_TABLE = (
    "TRUNCATE {} CASCADE",
    "DROP TABLE {} CASCADE",
    "ALTER TABLE {} ADD more int",
    "ALTER TABLE {} DISABLE TRIGGER USER",
    "CREATE INDEX ON {} ((1))",
    "CREATE TRIGGER more BEFORE INSERT ON {} EXECUTE FUNCTION settle_response()",
)


async def may_do_rows_alone(url: str) -> None:
    """Asserts that the role of this URL changes nothing but rows. Which ones: tests/integration/store/test_roles.py."""
    connection = await asyncpg.connect(url)
    try:
        tables = [
            each["tablename"] for each in await connection.fetch("SELECT * FROM pg_tables WHERE schemaname = 'public'")
        ]
        assert {"responses", "api_keys", "audit_logs"} <= set(tables)
        for statement in (*FORBIDDEN, *(each.format(table) for each in OF_EACH_TABLE for table in tables)):
            assert await is_refused(connection, statement), statement
    finally:
        await connection.close()


async def is_refused(connection: asyncpg.Connection, statement: str) -> bool:
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    return False


def test_the_page_s_roles_get_their_rights_by_a_migration_and_nothing_else(services: Services) -> None:
    async def check(urls: Mapping[str, str]) -> None:
        for role in ROLES:
            await may_do_rows_alone(urls[role])
            db = Database(urls[role], 1)
            held = {tuple(row) for row in await db.execute(HELD, {"role": None, "tables": list(RIGHTS)})}
            await db.close()
            assert held == wanted(role), role

    with roles(services) as urls:
        refused = longhaul("migrate", env={"DATABASE_URL": urls[API]})
        assert refused.returncode == 1
        assert "its role does not own the schema: give `migrate` the owner's DATABASE_URL" in refused.stderr
        assert longhaul("migrate", env={"DATABASE_URL": urls[OWNER]}).returncode == 0
        assert longhaul("migrate", env={"DATABASE_URL": urls[API]}).returncode == 0, "nothing is to be done"
        asyncio.run(check(urls))


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


@pytest.mark.long
def test_every_process_works_with_the_rights_that_the_page_asks_for(services: Services, tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = stack.enter_context(roles(services))
        redis_url = stack.enter_context(redis_user(services, tmp_path))
        deployment = Deployment(stack, tmp_path, urls, redis_url)
        deployment.wait_until_ready()
        responses = deployment.api.responses
        say, count = "/say Hello", "/count 3000"
        # in the background, and as a stream
        created = responses.create(model="scripted", input=say, background=True)
        until_sync(lambda: responses.retrieve(created.id).status == "completed", what=deployment.logs)
        *_, last = responses.create(model="scripted", input=say, stream=True)
        assert last.type == "response.completed" and last.response.output_text == "Hello"
        # cancelled by its client, and by an operator
        cancelled = responses.create(model="scripted", input=count, background=True).id
        assert responses.cancel(cancelled).status == "cancelled"
        terminated = responses.create(model="scripted", input=count, background=True).id
        until_sync(lambda: state_in_flower(deployment, terminated) == "STARTED", what=deployment.logs)
        deployment.flower.post(f"/api/task/revoke/{terminated}", params={"terminate": "true"}).raise_for_status()
        until_sync(lambda: responses.retrieve(terminated).status == "cancelled", what=deployment.logs)
        # a worker that dies
        taken_over = responses.create(model="scripted", input=count, background=True).id
        until_sync(lambda: responses.retrieve(taken_over).output_text, what=deployment.logs)
        deployment.processes["worker"].send_signal(signal.SIGTERM)
        until_sync(lambda: "released" in deployment.processes["worker"].text, what=deployment.logs)
        scraped = httpx.get(f"http://127.0.0.1:{deployment.metrics_port}/metrics").text
        assert "longhaul_fleet_up 1.0" in scraped, deployment.logs()
        assert 'longhaul_fleet_workers{model="scripted",state="ready"}' in scraped
        for path in ("/workers", "/broker", "/tasks"):
            assert deployment.flower.get(path).status_code == 200, path
        for name, process in deployment.processes.items():
            assert not re.search("permission denied|NOPERM|No permissions", process.text), (name, process.text[-3000:])


def state_in_flower(deployment: Deployment, response_id: str) -> str | None:
    found = deployment.flower.get(f"/api/task/info/{response_id}")
    return found.json().get("state") if found.status_code == 200 else None
